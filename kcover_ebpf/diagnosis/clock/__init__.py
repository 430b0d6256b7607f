"""How long a job may be silent: what it learned while healthy, when a stall begins, how sure is sure enough."""
