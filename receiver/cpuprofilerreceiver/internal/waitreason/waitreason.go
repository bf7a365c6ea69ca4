// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package waitreason finds the wait reason of a blocked thread from the kernel functions
// on its stack. The search starts at the innermost function and goes outward. The first
// function that is in the table determines the wait reason.
//
// For example, a thread that receives from a socket may first have to read the page of its
// buffer from a file. The wait reason of this thread is the disk. The wait reason of a
// thread that waits until another thread releases a socket is a lock. If no function is in
// the table, the wait reason is "other". This includes poll, select and epoll_wait, because
// their stacks do not show the kind of descriptors.
//
// The names are valid for Linux 4.18 to 6.18. The names of 6.18 are from the stacks of
// waiting programs (testdata/stacks.txt) and from its kallsyms. The names of 4.18 to 6.8
// are from the debug information of Ubuntu's kernels as DepSurf lists it
// (github.com/DepSurf/function). DepSurf also shows which functions compilers inline. If
// inlining differs between kernels, the table has several functions of the same call path.
// NFS, SMB and 9p are modules in these kernels, so their names are from the kernel's
// source.
package waitreason

import (
	"strings"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// functions lists the functions of each wait reason. Compiler suffixes (.isra.0) and
// prefixes of system calls (__x64_, __arm64_, __se_, __do_) are removed before the lookup.
var functions = map[samples.Wait]string{
	// These functions wait on sockets of all kinds, including Unix sockets. The functions
	// of net/socket.c are on almost every such stack. The other functions are for kernels
	// in which the compiler turned a call in net/socket.c into a jump.
	samples.WaitNetwork: `
		sock_recvmsg sock_sendmsg __sock_sendmsg sock_read_iter sock_write_iter sock_splice_read
		__sys_recvfrom __sys_recvmsg __sys_recvmmsg ___sys_recvmsg ____sys_recvmsg do_recvmmsg
		__sys_sendto __sys_sendmsg __sys_sendmmsg ___sys_sendmsg ____sys_sendmsg
		__sys_connect __sys_connect_file __sys_accept4 __sys_accept4_file do_accept
		sys_recvfrom sys_recvmsg sys_recvmmsg sys_sendto sys_sendmsg sys_sendmmsg
		sys_connect sys_accept sys_accept4
		sk_wait_data sk_stream_wait_memory sk_stream_wait_connect sk_stream_wait_close
		inet_csk_accept inet_stream_connect __inet_stream_connect
		__skb_wait_for_more_packets __skb_recv_datagram __skb_recv_udp sock_alloc_send_pskb
		unix_wait_for_peer unix_stream_read_generic unix_stream_connect unix_accept`,

	// The kernel calls io_schedule for waits that it accounts as I/O: pages (folio_wait_*,
	// wait_on_page_*), buffers (bit_wait_io), requests (blk_*, rq_qos_wait) and throttled
	// writers (balance_dirty_pages). The other functions wait without io_schedule. They are
	// functions of journals, of sync(2), and of file systems with a server, which count as
	// disks: NFS (net/sunrpc/sched.c), SMB, 9p and FUSE.
	samples.WaitDisk: `
		io_schedule io_schedule_timeout
		jbd2_log_wait_commit wait_transaction_locked add_transaction_credits start_this_handle
		wb_wait_for_completion sync_inodes_sb __writeback_inodes_sb_nr
		sync_filesystem vfs_fsync_range do_fsync
		sys_fsync sys_fdatasync sys_sync sys_syncfs sys_sync_file_range sys_msync ksys_sync
		rpc_wait_bit_killable rpc_wait_for_completion_task __rpc_wait_for_completion_task __rpc_execute nfs_wait_bit_killable
		request_wait_answer fuse_simple_request __fuse_simple_request fuse_request_send
		p9_client_rpc p9_client_zc_rpc compound_send_recv`,

	// Locks of programs are futexes (futex_wait_queue_me in 5.15, futex_wait_queue from
	// 5.19, futex_do_wait in 6.18), System V semaphores and file locks. Locks of the kernel
	// are mutexes, semaphores (rwsem_down_*_failed in 5.0, *_slowpath from 5.3) and socket
	// locks.
	samples.WaitLock: `
		futex_wait_queue_me futex_wait_queue futex_do_wait __futex_wait futex_wait futex_wait_multiple
		futex_lock_pi futex_wait_requeue_pi do_futex sys_futex sys_futex_wait sys_futex_waitv
		__do_semtimedop do_semtimedop ksys_semtimedop
		locks_lock_inode_wait do_lock_file_wait fcntl_setlk __break_lease sys_flock
		mutex_lock mutex_lock_interruptible mutex_lock_killable mutex_lock_io
		__mutex_lock __mutex_lock_slowpath __mutex_lock_interruptible_slowpath __mutex_lock_killable_slowpath
		__ww_mutex_lock __ww_mutex_lock_slowpath __ww_mutex_lock_interruptible_slowpath
		rt_mutex_lock rt_mutex_slowlock __rt_mutex_slowlock __rt_mutex_slowlock_locked rt_mutex_slowlock_block
		rwsem_down_read_slowpath rwsem_down_write_slowpath
		rwsem_down_read_failed rwsem_down_read_failed_killable
		rwsem_down_write_failed rwsem_down_write_failed_killable
		down_read down_read_interruptible down_read_killable down_write down_write_killable
		__down __down_common ___down_common __down_interruptible __down_killable __down_timeout
		percpu_rwsem_wait __percpu_down_read percpu_down_write
		__lock_sock lock_sock_nested __vma_start_write`,

	samples.WaitSleep: `
		do_nanosleep hrtimer_nanosleep common_nsleep common_nsleep_timens
		alarm_timer_nsleep alarmtimer_do_nsleep sys_nanosleep sys_clock_nanosleep
		timerfd_read timerfd_read_iter`,

	// These functions end the search before an outer function determines a wrong reason.
	// io_uring waits for requests of any kind, and kernels released in July 2023 call
	// io_schedule for these waits. Page migration, page faults and allocations may happen
	// within any of the functions above. Netlink sockets do not use a network. The last
	// function is for frozen cgroups.
	samples.WaitOther: `
		io_cqring_wait
		migration_entry_wait_on_locked softleaf_entry_wait_on_locked __migration_entry_wait
		handle_mm_fault handle_userfault
		try_to_free_pages try_to_free_mem_cgroup_pages __alloc_pages_slowpath
		netlink_recvmsg netlink_sendmsg
		__refrigerator`,
}

// waits maps each function to its wait reason.
var waits = tableOf(functions)

// filesystems holds the prefixes of functions of file systems. Such a function waits for
// the disk. Kernel threads that wait for work have no such function on their stack.
var filesystems = [...]string{"ext4_", "jbd2_", "xfs_", "xlog_", "btrfs_"}

func tableOf(of map[samples.Wait]string) map[string]samples.Wait {
	table := make(map[string]samples.Wait)
	for wait, names := range of {
		for _, name := range strings.Fields(names) {
			table[name] = wait
		}
	}
	return table
}

// Find sets the wait reasons of the stacks of blocked threads in a batch. The locations
// must be resolved. Find skips a stack that already has a wait reason.
func Find(batch *samples.Batch) {
	for k := range batch.Keys() {
		if k.Type.Blocked && k.Stack.Wait == samples.WaitUnknown {
			k.Stack.Wait = of(k.Stack.Locations)
		}
	}
}

// of returns the wait reason of a stack. The reason is unknown if the stack has no kernel
// part, or if a function without a name comes before the first function in the table.
func of(stack []*samples.Location) samples.Wait {
	for i, l := range stack {
		if l.Type != samples.FrameKernel {
			break
		}
		name := nameOf(l)
		if name == "" {
			return samples.WaitUnknown
		}
		wait := decides(name)
		if wait == samples.WaitUnknown {
			continue
		}
		if strings.HasPrefix(name, "io_schedule") && i+1 < len(stack) && decides(nameOf(stack[i+1])) == samples.WaitOther {
			return samples.WaitOther
		}
		return wait
	}
	if len(stack) == 0 || stack[0].Type != samples.FrameKernel {
		return samples.WaitUnknown
	}
	return samples.WaitOther
}

// decides returns the wait reason of a function. The reason is unknown if the function is
// not in the table and its name does not begin with the prefix of a file system.
func decides(name string) samples.Wait {
	if wait, ok := waits[name]; ok {
		return wait
	}
	for _, prefix := range filesystems {
		if strings.HasPrefix(name, prefix) {
			return samples.WaitDisk
		}
	}
	return samples.WaitUnknown
}

// nameOf returns the name of a kernel function as written in the table, or "" if the
// function has no name.
func nameOf(l *samples.Location) string {
	if len(l.Lines) == 0 {
		return ""
	}
	line := &l.Lines[len(l.Lines)-1]
	name := line.SystemName // the name without the module
	if name == "" {
		name = line.Function
	}
	name, _, _ = strings.Cut(name, ".")
	for _, prefix := range [...]string{"__x64_", "__arm64_", "__se_", "__do_"} {
		if call, ok := strings.CutPrefix(name, prefix); ok && strings.HasPrefix(call, "sys_") {
			return call
		}
	}
	return name
}
