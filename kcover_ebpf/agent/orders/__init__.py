"""Carries out the controller's orders: stops and kills processes, saves evidence."""
