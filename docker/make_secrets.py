"""Draw the secrets of the containers into docker/secrets, once: `python3 docker/make_secrets.py`."""

import base64
import json
import secrets
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "secrets"


def fernet_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def airflow_users() -> str:
    return json.dumps({"admin": secrets.token_urlsafe(18)})


def aws_credentials() -> str:
    """Of the store of docker-compose.s3.yml, as AWS' own tools keep them."""
    return f"[default]\naws_access_key_id = onceonly\naws_secret_access_key = {secrets.token_urlsafe(24)}\n"


DRAW = {
    "aws_credentials": aws_credentials,
    "airflow_fernet_key": fernet_key,
    "airflow_jwt_secret": lambda: secrets.token_urlsafe(48),
    "airflow_secret_key": lambda: secrets.token_urlsafe(48),
    "airflow_users": airflow_users,
    "postgres_password": lambda: secrets.token_urlsafe(24),
}


def main() -> None:
    """What exists is kept. The folder is the owner's alone; the files are readable for the containers' users."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    for name, draw in DRAW.items():
        path = FOLDER / name
        if not path.exists():
            path.write_text(draw())
            path.chmod(0o444)
    print(f"The secrets are in {FOLDER}; the password of Airflow's admin is in airflow_users.")


if __name__ == "__main__":
    main()
