"""What the controller orders: processes stopped and killed, evidence saved."""
