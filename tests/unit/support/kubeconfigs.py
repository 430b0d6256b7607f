"""Kubeconfig files."""

from pathlib import Path

SECRET = "not-for-display"


def kubeconfig(folder: Path, url: str) -> str:
    path = folder / "config"
    path.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: a
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: {SECRET}}}}}]
contexts: [{{name: a, context: {{cluster: c, user: u}}}}]
"""
    )
    return str(path)
