"""Everything that talks to Kubernetes; nothing else imports the `kubernetes` package.

That package costs 30 MB, so it is imported when a session is opened, and not by an agent in a pod.
"""
