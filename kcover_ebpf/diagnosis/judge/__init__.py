"""From a snapshot of all ranks to one finding. The rules, and no more."""
