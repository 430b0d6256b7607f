"""The steps of a gang's restart, and what may forbid them."""
