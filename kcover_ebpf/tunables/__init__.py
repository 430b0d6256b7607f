"""The numbers that decide how the sensor behaves and that no option sets, each with its unit and reason."""
