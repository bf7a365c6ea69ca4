#!/usr/bin/env bash
# Runs the test of this folder in namespaces and cgroups of its own, and removes
# everything at the end, also after a failure. `make kubernetes` builds its programs.
set -euo pipefail
cd "$(dirname "$0")"
((EUID == 0)) || { echo "run it as root" >&2; exit 1; }
for program in etcd containerd ctr runc ip /usr/lib/cni/bridge; do
	command -v "$program" >/dev/null || { echo "$program is missing: apt-get install etcd-server containerd runc containernetworking-plugins iproute2" >&2; exit 1; }
done
dir=$(mktemp -d /var/tmp/hotprofile-cluster.XXXXXX)
cgroup=hotprofile-cluster
if [[ -e /sys/fs/cgroup/cgroup.procs ]]; then hierarchies=(/sys/fs/cgroup); else hierarchies=(/sys/fs/cgroup/*/); fi
# The kubelet sets these.
sysctls=(/proc/sys/vm/{overcommit_memory,panic_on_oom} /proc/sys/kernel/{panic,panic_on_oops} /proc/sys/kernel/keys/{root_maxkeys,root_maxbytes})
before=()
for file in "${sysctls[@]}"; do before+=("$(cat "$file")"); done

cleanup() {
	for _ in $(seq 100); do
		pids=$(find "${hierarchies[@]/%//$cgroup}" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u) || true
		[[ -n $pids ]] || break
		# shellcheck disable=SC2086
		kill -9 $pids 2>/dev/null || true
		sleep 0.1
	done
	find "${hierarchies[@]/%//$cgroup}" -depth -type d -exec rmdir {} + 2>/dev/null || true
	for i in "${!sysctls[@]}"; do echo "${before[i]}" >"${sysctls[i]}"; done
	rm -rf --one-file-system "$dir"
	if find "${hierarchies[@]}" -maxdepth 1 -name "$cgroup" | grep .; then echo "these cgroups are left" >&2; fi
}
trap cleanup EXIT
trap 'exit 1' INT TERM

for hierarchy in "${hierarchies[@]}"; do mkdir -p "$hierarchy/$cgroup/system"; done
(
	for hierarchy in "${hierarchies[@]}"; do
		[[ $hierarchy == */cpuset/ ]] || echo "$BASHPID" >"$hierarchy/$cgroup/system/cgroup.procs"
	done
	# Files that the programs write at fixed paths are the namespace's own.
	exec unshare --mount --net --propagation private bash -eu -c '
		mount --make-rshared /
		for path in /run /var/log /var/lib/kubelet /var/lib/cni; do mkdir -p "$path"; mount -t tmpfs none "$path"; done
		ip link set lo up
		ip link add node0 type veth peer name node1
		ip address add 192.168.77.1/24 dev node0
		ip address add 10.96.0.1/32 dev node0
		ip link set node0 up
		ip link set node1 up
		ip route add default dev node0
		echo 1 >/proc/sys/net/ipv4/ip_forward
		exec "$@"' bash "$@" -cluster "$dir" -test.v -test.timeout 20m
) &
wait $!
