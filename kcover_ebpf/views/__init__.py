"""All ranks of a job at once, in the forms that people and other programs read."""
