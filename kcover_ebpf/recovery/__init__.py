"""From the verdict on a gang to its restart: guards, the restart machine, its methods. Pure."""
