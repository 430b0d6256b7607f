"""What each thread, process and connection of a job did over time, and what it always does. No judgement."""
