"""A Flask app with limits: `flask --app flask_app run`, or run it to see what it answers."""

from __future__ import annotations

from flask import Flask

from penstock.integrations.flask import RateLimits

app = Flask(__name__)
limits = RateLimits(app, "100/minute")


@app.route("/")
def home() -> str:
    return "hello\n"


@app.route("/search")
@limits.limit("2/minute")
def search() -> str:
    return "found\n"


def main() -> None:
    client = app.test_client()
    for path in ("/", "/search", "/search", "/search"):
        answer = client.get(path)
        print(path, answer.status_code, answer.headers["RateLimit"])


if __name__ == "__main__":
    main()
