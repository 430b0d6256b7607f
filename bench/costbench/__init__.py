"""What the sensor costs the job it watches."""
