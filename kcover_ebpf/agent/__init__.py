"""The program of a node: watches the pods of jobs, reports what it sees, carries out orders."""
