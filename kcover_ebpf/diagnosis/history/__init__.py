"""Activity of each thread, process and connection of a job over time, and its habits. No judgement."""
