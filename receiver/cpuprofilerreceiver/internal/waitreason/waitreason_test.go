// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package waitreason

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// stackOf returns a stack of kernel functions that were called by a program's function. A
// function called ? has no name.
func stackOf(functions ...string) *samples.Stack {
	s := new(samples.Stack)
	for _, f := range functions {
		l := &samples.Location{Type: samples.FrameKernel}
		if f != "?" {
			name, module, inModule := strings.Cut(f, "@")
			line := samples.Line{Function: name}
			if inModule {
				line = samples.Line{Function: name + " [" + module + "]", SystemName: name}
			}
			l.Lines = []samples.Line{line}
		}
		s.Locations = append(s.Locations, l)
	}
	s.Locations = append(s.Locations, &samples.Location{Type: samples.FrameNative, Lines: []samples.Line{{Function: "sock_recvmsg"}}})
	return s
}

func batchOf(typ *samples.Type, stacks ...*samples.Stack) *samples.Batch {
	b := samples.NewBatch(1 << 20)
	for _, s := range stacks {
		b.AddValue(samples.Key{Resource: new(samples.Resource), Type: typ, Stack: s}, 1, 1)
	}
	return b
}

func find(typ *samples.Type, s *samples.Stack) string {
	Find(batchOf(typ, s))
	return s.Wait.String()
}

// TestStacksOfRealPrograms reads stacks that were recorded by the receiver's
// TestSamplesHaveWhatProgramsWaitFor.
func TestStacksOfRealPrograms(t *testing.T) {
	recorded, err := os.ReadFile("testdata/stacks.txt")
	require.NoError(t, err)
	found := map[string]int{}
	for line := range strings.Lines(string(recorded)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		require.Equal(t, f[1], find(samples.OffCPU, stackOf(f[2:]...)), line)
		found[f[1]]++
	}
	require.Len(t, found, 5)
}

func TestOtherStacks(t *testing.T) {
	for name, c := range map[string]struct{ stack, waits string }{
		"5.4, futex":            {"schedule futex_wait_queue_me futex_wait do_futex __x64_sys_futex", "lock"},
		"4.18, rwsem":           {"schedule rwsem_down_read_failed call_rwsem_down_read_failed down_read __do_page_fault", "lock"},
		"5.4, mutex":            {"schedule schedule_preempt_disabled __mutex_lock.isra.0 __mutex_lock_slowpath mutex_lock pipe_write", "lock"},
		"5.15, page":            {"schedule io_schedule wait_on_page_bit_common filemap_update_page filemap_read xfs_file_read_iter@xfs", "disk"},
		"5.4, journal":          {"schedule jbd2_log_wait_commit ext4_sync_file vfs_fsync_range do_fsync", "disk"},
		"a file system":         {"schedule wait_for_completion __flush_work xlog_cil_force_seq@xfs xfs_log_force_seq@xfs", "disk"},
		"NFS":                   {"schedule rpc_wait_bit_killable@sunrpc __wait_on_bit out_of_line_wait_on_bit __rpc_execute@sunrpc", "disk"},
		"FUSE":                  {"schedule request_wait_answer@fuse fuse_simple_request@fuse fuse_do_getattr@fuse", "disk"},
		"6.18, FUSE":            {"fuse_get_req __fuse_simple_request fuse_lookup_name fuse_lookup __lookup_slow walk_component path_lookupat", "disk"},
		"6.18, mmap":            {"schedule schedule_preempt_disabled rwsem_down_write_slowpath down_write_killable vm_mmap_pgoff do_syscall_64", "lock"},
		"a FUSE server":         {"schedule do_wait_intr_irq fuse_dev_do_read@fuse fuse_dev_read@fuse vfs_read", "other"},
		"arm64":                 {"__switch_to schedule __arm64_sys_clock_nanosleep invoke_syscall", "sleep"},
		"6.1, io_uring":         {"schedule io_schedule io_cqring_wait __do_sys_io_uring_enter", "other"},
		"the socket's lock":     {"schedule __lock_sock lock_sock_nested tcp_recvmsg sock_recvmsg __sys_recvfrom", "lock"},
		"memory for a packet":   {"schedule schedule_timeout reclaim_throttle try_to_free_pages __alloc_pages_slowpath.constprop.0 tcp_sendmsg sock_sendmsg", "other"},
		"memory for a fault":    {"schedule schedule_timeout handle_mm_fault exc_page_fault _copy_to_iter tcp_recvmsg sock_recvmsg", "other"},
		"moved pages":           {"schedule io_schedule migration_entry_wait_on_locked do_swap_page handle_mm_fault", "other"},
		"netlink":               {"schedule synchronize_rcu rtnetlink_rcv_msg netlink_rcv_skb netlink_sendmsg sock_sendmsg", "other"},
		"nothing that is known": {"schedule do_something do_syscall_64", "other"},
		"a longer name":         {"schedule io_schedule_of_a_driver do_futex_of_a_driver", "other"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.waits, find(samples.OffCPU, stackOf(strings.Fields(c.stack)...)))
		})
	}
}

func TestUnknownWaits(t *testing.T) {
	for name, s := range map[string]*samples.Stack{
		"no kernel stack":   stackOf(),
		"no names":          stackOf("?", "?"),
		"an unnamed caller": stackOf("schedule", "?", "do_futex"),
		"no stack at all":   {},
	} {
		require.Empty(t, find(samples.OffCPU, s), name)
	}
	require.Equal(t, "lock", find(samples.OffCPU, stackOf("schedule", "do_futex", "?")), "it is decided before")
	require.Empty(t, find(samples.RunQueue, stackOf("schedule", "do_futex")), "it could run")
	late := stackOf("schedule", "?")
	require.Empty(t, find(samples.OffCPU, late))
	late.Locations[1].Lines = []samples.Line{{Function: "do_futex"}}
	require.Equal(t, "lock", find(samples.OffCPUScaled, late), "the names were read later")
}

// TestEachFunctionIsListedOnce checks that no function is listed twice. Otherwise, the wait
// reason of the function would depend on the order of a map.
func TestEachFunctionIsListedOnce(t *testing.T) {
	n := 0
	for _, names := range functions {
		n += len(strings.Fields(names))
	}
	require.Len(t, waits, n)
}

// BenchmarkFind measures batches of 8000 samples. It covers samples whose stacks were
// emitted before and samples with new stacks.
func BenchmarkFind(b *testing.B) {
	functions := strings.Fields("schedule schedule_timeout wait_woken sk_wait_data tcp_recvmsg_locked tcp_recvmsg sock_recvmsg")
	stacks := make([]*samples.Stack, 8000)
	for i := range stacks {
		stacks[i] = stackOf(functions...)
	}
	batch := samples.NewBatch(1 << 30)
	for _, s := range stacks {
		batch.AddValue(samples.Key{Resource: new(samples.Resource), Type: samples.OffCPU, Stack: s}, 1, 1)
	}
	for _, isNew := range []bool{false, true} {
		b.Run(map[bool]string{false: "known", true: "new"}[isNew], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if isNew {
					for _, s := range stacks {
						s.Wait = samples.WaitUnknown
					}
				}
				Find(batch)
			}
		})
	}
}
