#!/bin/sh
# Make Redis servers one cluster, and keep them one: form-cluster.sh REPLICAS HOST:PORT [HOST:PORT ...]
#
# Waits until all servers answer. Where they are a cluster already, tells each the addresses that the others have now:
# they keep those that they had before, and find nobody there if all have changed at once. Ends with an error where
# hash slots are served by nobody. The password is taken from CTR_REDIS_PASSWORD.
set -eu

replicas=$1
shift
wanted=0 # replicas that every server has to know of
wait_s=${FORM_CLUSTER_WAIT_S:-120}
export REDISCLI_AUTH="${CTR_REDIS_PASSWORD:-}"
[ -n "$REDISCLI_AUTH" ] || unset REDISCLI_AUTH

ask() { # a server, and a command
  address=$1
  shift
  redis-cli -h "${address%:*}" -p "${address##*:}" "$@" 2>&1
}

fail() {
  echo "form-cluster: $*" >&2
  exit 1
}

state_of() {
  ask "$1" CLUSTER INFO | tr -d '\r' | sed -n "s/^$2://p"
}

replicas_known_to() {
  ask "$1" CLUSTER NODES | grep -c -w slave
}

for server in "$@"; do
  waited=0
  until answer=$(ask "$server" PING) && [ "$answer" = PONG ]; do
    case $answer in
      *NOAUTH*|*WRONGPASS*) fail "$server refuses the password in CTR_REDIS_PASSWORD" ;;
    esac
    [ "$waited" -lt "$wait_s" ] || fail "$server does not answer ($answer)"
    waited=$((waited + 1))
    sleep 1
  done
done

assigned=$(state_of "$1" cluster_slots_assigned)
known=$(state_of "$1" cluster_known_nodes)
[ -n "$assigned" ] || fail "$1 has no cluster mode: start it with --cluster-enabled yes"

# Redis compares addresses that servers tell each other, and takes no names, so names are looked up first.
addresses=
for server in "$@"; do
  ip=$(getent hosts "${server%:*}" | awk 'NR == 1 { print $1 }')
  addresses="$addresses ${ip:-${server%:*}}:${server##*:}"
done

if [ "$assigned" = 0 ] && [ "$known" = 1 ]; then
  # shellcheck disable=SC2086
  redis-cli --cluster create $addresses --cluster-replicas "$replicas" --cluster-yes >/dev/null ||
    fail "redis-cli could not make a cluster of$addresses"
  echo "formed a cluster of $# servers"
  wanted=$(($# * replicas / (replicas + 1)))
elif [ "$assigned" != 16384 ]; then
  fail "of 16384 hash slots $((16384 - assigned)) are served by nobody; repair it with redis-cli --cluster fix $1"
else
  for one in $addresses; do
    for other in $addresses; do
      [ "$one" = "$other" ] || ask "$one" CLUSTER MEET "${other%:*}" "${other##*:}" >/dev/null ||
        fail "$one does not answer any more"
    done
  done
fi

for server in "$@"; do
  waited=0
  until [ "$(state_of "$server" cluster_state)" = ok ] && [ "$(replicas_known_to "$server")" -ge "$wanted" ]; do
    [ "$waited" -lt "$wait_s" ] || fail "$server: cluster_state is $(state_of "$server" cluster_state); see redis-cli --cluster check $server"
    waited=$((waited + 1))
    sleep 1
  done
done
echo "the cluster is ready"
