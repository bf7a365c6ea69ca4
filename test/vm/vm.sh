#!/usr/bin/env bash
# Copyright The hotprofile Authors
# SPDX-License-Identifier: Apache-2.0
#
# Builds a Debian guest with cgroup v2 alone, with systemd or of arm64, and runs a
# job in it.
# See README.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)

usage() {
	cat >&2 <<'END'
usage: vm.sh image             build the guest's image, unless it is there
       vm.sh sources           copy what is committed to the guest, and build it
       vm.sh run JOB [ARG…]    boot the guest, run the script JOB in it, power it off
       vm.sh all               the image, the sources, and each job
END
	exit 2
}

die() { echo "vm.sh: $*" >&2; exit 1; }

# The guest is kept in $VM_DIR; without it each run builds one and leaves nothing.
if [[ -z ${VM_DIR:-} ]]; then
	VM_DIR=$(mktemp -d)
	trap 'rm -rf "$VM_DIR"' EXIT
fi
mkdir -p "$VM_DIR"
VM_DIR=$(cd "$VM_DIR" && pwd)
: "${VM_MEMORY:=2048}" "${VM_CPUS:=2}" "${VM_TIMEOUT:=30m}" "${VM_ACCEL:=}" "${VM_ARCH:=amd64}"
case $VM_ARCH in
amd64) qemu=qemu-system-x86_64 machine=q35 console=ttyS0 ;;
arm64) qemu=qemu-system-aarch64 machine=virt console=ttyAMA0 VM_DIR+=/arm64 VM_ACCEL=${VM_ACCEL:-icount} ;;
*) die "VM_ARCH is amd64 or arm64" ;;
esac
mkdir -p "$VM_DIR"

packages=procps,util-linux,kmod,iproute2,gcc,g++,libc6-dev,binutils,xz-utils,python3-minimal,libpython3-stdlib
packages+=,linux-image-cloud-$VM_ARCH

image() {
	[[ -e $VM_DIR/root.img ]] && return
	[[ $EUID == 0 ]] || die "debootstrap needs root"
	for tool in debootstrap mke2fs depmod "$qemu"; do
		command -v "$tool" >/dev/null || die "$tool is missing: apt-get install debootstrap e2fsprogs kmod qemu-system-x86 qemu-system-arm qemu-system-common"
	done
	local root=$VM_DIR/root
	rm -rf "$root"
	"system_$VM_ARCH" "$root"
	cp "$root"/boot/vmlinuz-* "$VM_DIR/vmlinuz"
	mke2fs -q -t ext4 -O ^has_journal -L root -d "$root" "$VM_DIR/root.img.new" 4G
	mv "$VM_DIR/root.img.new" "$VM_DIR/root.img"
	rm -rf "$root"
}

# system_amd64 installs Debian with systemd.
system_amd64() {
	local root=$1
	packages+=,systemd,systemd-sysv,dbus,udev,libcap2-bin,strace,apparmor,ca-certificates,docker.io
	debootstrap --variant=minbase --include="$packages" bookworm "$root" >"$VM_DIR/debootstrap.log" ||
		die "debootstrap failed, see $VM_DIR/debootstrap.log"
	install -m 644 "$here/guest/vm-job.service" "$root/etc/systemd/system/vm-job.service"
	ln -sf /etc/systemd/system/vm-job.service "$root/etc/systemd/system/multi-user.target.wants/vm-job.service"
	# Started by the jobs that need it.
	rm -f "$root"/etc/systemd/system/*.wants/{docker,containerd}.service "$root"/etc/systemd/system/sockets.target.wants/docker.socket
	echo hotprofile-vm >"$root/etc/hostname"
	cp "$root"/boot/initrd.img-* "$VM_DIR/initrd"
}

# system_arm64 unpacks Debian's packages and configures none, since their scripts
# do not run here: enough for a kernel, a shell and compilers, not for systemd.
system_arm64() {
	local root=$1 each version
	debootstrap --foreign --arch=arm64 --variant=minbase --include="$packages,busybox-static" bookworm "$root" >"$VM_DIR/debootstrap.log" ||
		die "debootstrap failed, see $VM_DIR/debootstrap.log"
	for each in "$root"/var/cache/apt/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$each" | tar -x --keep-directory-symlink -C "$root"
	done
	rm -rf "$root"/var/cache/apt/archives/*.deb
	# In a container debootstrap makes it a link, to itself once it is the root.
	rm -rf "$root/proc"
	mkdir "$root/proc"
	ln -sf gcc "$root/usr/bin/cc"
	ln -sf mawk "$root/usr/bin/awk"
	cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
	cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
	echo 127.0.0.1 localhost >"$root/etc/hosts"
	install -m 755 "$here/guest/vm-init" "$root/sbin/vm-init"
	version=$(ls "$root/lib/modules")
	depmod -b "$root" "$version"
	# What the root is read with, in the order of its needs.
	local first=$VM_DIR/initramfs
	rm -rf "$first"
	mkdir -p "$first"/{bin,proc,dev,root,modules.d}
	install -m 755 "$root/bin/busybox" "$here/guest/initramfs" "$first/bin/"
	for each in sh mount umount insmod cat sleep switch_root; do ln -s busybox "$first/bin/$each"; done
	ln -s bin/initramfs "$first/init"
	for each in virtio_pci virtio_blk crc32c_generic ext4; do
		modprobe -d "$root" -S "$version" --show-depends "$each"
	done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r each; do
		cp "$each" "$first/modules.d/"
		basename "$each"
	done >"$first/modules"
	(cd "$first" && find . | cpio --quiet -o -H newc | gzip -1) >"$VM_DIR/initrd"
	rm -rf "$first"
}

# sources copies the committed state, since a working tree may change during a run.
sources() {
	rm -rf "$VM_DIR/src"
	mkdir -p "$VM_DIR/src"
	git -C "$repo" archive HEAD | tar -x -C "$VM_DIR/src"
	make -s -C "$VM_DIR/src" build build-kubernetes
	cd "$VM_DIR/src"
	if [[ $VM_ARCH != amd64 ]]; then
		export GOARCH=$VM_ARCH CGO_ENABLED=0
		# As `make dist` builds it.
		for name in otelcol-hotprofile otelcol-hotprofile-kubernetes; do
			(cd "bin/src${name#otelcol-hotprofile}" && go build -trimpath -buildvcs=false -ldflags '-s -w' -o "../$name" .)
		done
		mkdir -p bin/guest
		go build -o bin/guest/ ./test/vm/guest/go
	fi
	go build -o bin/ ./test/load ./test/demo ./test/dotnetsender
	# Tests with a real kernel in them are compiled here: the guest is slow.
	local package
	mkdir -p bin/tests
	for package in "${VM_PACKAGES[@]}"; do
		go test -c -o "bin/tests/${package//\//_}.test" "./$package"
	done
}

VM_PACKAGES=(
	internal/cgroup internal/cgroup/openfile internal/monitor internal/perfevent internal/perfevent/switches internal/perfevent/uprobe internal/unixsocket
	internal/nativeformat internal/otlpprofiles internal/procfs internal/samples internal/trigger
	processor/cputriggerprocessor
	receiver/cpuprofilerreceiver
	receiver/cpuprofilerreceiver/internal/perftargets
	receiver/cpuprofilerreceiver/internal/cputime
	receiver/cpuprofilerreceiver/internal/sampler/oncpu
	receiver/cpuprofilerreceiver/internal/sampler/offcpu
	receiver/cpuprofilerreceiver/internal/sampler/allocs
	receiver/cpuprofilerreceiver/internal/processes
	receiver/cpuprofilerreceiver/internal/symbolizer
	receiver/cpuprofilerreceiver/internal/unwind
	test/e2e
)

accelerator() {
	case $VM_ACCEL in
	# Time that goes by instructions, 4 ns each, so that neither the emulator nor what
	# else runs on the host makes the guest too slow for its own clock.
	icount) echo "-accel tcg,thread=single,tb-size=512 -icount shift=2 -cpu max" ;;
	kvm) echo "-accel kvm -cpu host" ;;
	tcg) echo "-accel tcg,thread=multi,tb-size=512 -cpu max" ;;
	*)
		# A device alone is not enough: without the processor's own extensions a
		# hypervisor of another kind answers, and guests of this kind hang.
		if [[ -w /dev/kvm ]] && grep -qE '^flags.* (vmx|svm)( |$)' /proc/cpuinfo; then
			echo "-accel kvm -cpu host"
		else
			echo "-accel tcg,thread=multi,tb-size=512 -cpu max"
		fi
		;;
	esac
}

# serve_go runs what the guest asks its Go for: emulated, a compiler takes minutes.
# See guest/go.
serve_go() {
	local asked request=() cgo=(CGO_ENABLED=0)
	command -v aarch64-linux-gnu-gcc >/dev/null && cgo=(CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc)
	while sleep 0.2; do
		for asked in "$1"/*/asked; do
			[[ -e $asked ]] || continue
			cd "${asked%/*}"
			mapfile -d '' -t request <asked
			rm asked
			(cd "${request[0]}" && env GOARCH=arm64 "${cgo[@]}" "${request[@]:1}") >stdout 2>stderr </dev/null && echo 0 >ended || echo $? >ended
			mv ended status
		done
	done
}

virtiofsd() {
	local each
	for each in /usr/libexec/virtiofsd /usr/lib/qemu/virtiofsd; do
		[[ -x $each ]] && { echo "$each"; return; }
	done
	die "virtiofsd is missing: apt-get install qemu-system-common (or virtiofsd)"
}

run() {
	local job=$1
	shift
	[[ -r $job ]] || die "no job $job"
	local work daemon devices=() pids=()
	work=$(mktemp -d "$VM_DIR/run.XXXXXX")
	daemon=$(virtiofsd)
	mkdir -p "$VM_DIR/out" "$work/vm"
	cp "$job" "$work/vm/job"
	cp "$here/guest/vm-job" "$work/vm/vm-job"
	printf '%q ' "$@" >"$work/vm/arguments"
	# What the guest sees is at the path that it has here, so that Go's build cache
	# holds there too.
	local -A shares=(
		[src]=$VM_DIR/src [goroot]=$(go env GOROOT) [gomod]=$(go env GOMODCACHE) [gocache]=$(go env GOCACHE)
		[out]=$VM_DIR/out [vm]=$work/vm
	)
	{
		printf 'VM_RUN=%q\n' "$work/vm"
		local tag
		for tag in src goroot gomod gocache out; do
			printf 'VM_%s=%q\n' "${tag^^}" "${shares[$tag]}"
		done
	} >"$work/vm/env"
	for tag in "${!shares[@]}"; do
		"$daemon" --socket-path="$work/$tag.sock" -o source="${shares[$tag]}" -o cache=auto >"$work/$tag.log" 2>&1 &
		pids+=($!)
		devices+=(-chardev "socket,id=$tag,path=$work/$tag.sock" -device "vhost-user-fs-pci,chardev=$tag,tag=$tag")
	done
	for tag in "${!shares[@]}"; do
		for _ in $(seq 100); do [[ -S $work/$tag.sock ]] && break; sleep 0.1; done
	done
	if [[ $VM_ARCH != amd64 ]]; then
		mkdir "$work/vm/go"
		serve_go "$work/vm/go" &
		pids+=($!)
	fi
	local accel
	read -ra accel <<<"$(accelerator)"
	# Each run has its own copy of the image: runs do not see each other's traces.
	cp --sparse=always "$VM_DIR/root.img" "$work/root.img"
	timeout "$VM_TIMEOUT" nice -n 19 "$qemu" "${accel[@]}" -M "$machine" -m "$VM_MEMORY" -smp "$VM_CPUS" \
		-object "memory-backend-memfd,id=mem,size=${VM_MEMORY}M,share=on" -numa node,memdev=mem \
		-nographic -vga none -net none -no-reboot \
		-kernel "$VM_DIR/vmlinuz" -initrd "$VM_DIR/initrd" \
		-append "console=$console root=LABEL=root rw quiet systemd.show_status=0 panic=-1 no_timer_check ${VM_APPEND:-}" \
		-drive "file=$work/root.img,if=virtio,format=raw" "${devices[@]}" </dev/null || true
	kill "${pids[@]}" 2>/dev/null || true
	wait "${pids[@]}" 2>/dev/null || true
	local status
	status=$(cat "$work/vm/status" 2>/dev/null) || status="none: the guest did not end the job"
	rm -rf "$work"
	[[ $status == 0 ]] || die "the job's exit status is $status"
}

case ${1:-} in
image) image ;;
sources) sources ;;
run)
	shift
	[[ $# -ge 1 ]] || usage
	image
	[[ -d $VM_DIR/src/bin ]] || (sources)
	run "$@"
	;;
all)
	image
	(sources)
	status=0
	for job in systemd hotplug tests; do
		(run "$here/jobs/$job.sh") || status=1
	done
	exit $status
	;;
*) usage ;;
esac
