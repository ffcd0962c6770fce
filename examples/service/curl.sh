#!/bin/sh
# The service over HTTP, call by call. Start the service first:
#
#   penstock serve --config examples/service/penstock.yaml
#
# Give another address as the first argument.
set -eu
base=${1:-http://127.0.0.1:8080}

post() {
  echo "POST $1 $2"
  curl -s "$base$1" -d "$2"
  echo
}

echo "GET /check/alice"
curl -s "$base/check/alice"
echo

# A limit that the request brings along, and a policy by its name.
post /check '{"key": "alice", "limit": 5, "window_ms": 60000}'
post /check '{"policy": "api", "key": "alice", "cost": 2}'

# Many keys at one instant; a look that spends nothing; what is left and when there is more.
post /v1/check-many '{"policy": "api", "keys": ["alice", "bob", "carol"]}'
post /v1/peek '{"policy": "api", "key": "alice"}'
post /v1/forecast '{"policy": "api", "key": "alice", "cost": 5}'

# Tokens that a model has used.
post /v1/debit '{"policy": "model", "key": "team-red", "tokens": 1200}'

# A slot, kept alive and given back.
admission=$(curl -s "$base/v1/admit" -d '{"policy": "jobs", "key": "worker-1"}')
echo "POST /v1/admit"
echo "$admission"
lease=$(echo "$admission" | sed 's/.*"lease_id": *"\([^"]*\)".*/\1/')
post /v1/heartbeat "{\"lease_ids\": [\"$lease\"]}"
post /v1/release "{\"lease_id\": \"$lease\"}"
