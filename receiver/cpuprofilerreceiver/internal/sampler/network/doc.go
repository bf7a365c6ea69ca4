// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package network samples code that sends and receives bytes over sockets, and code that
// opens TCP connections. It uses the kernel's tracepoints sock:sock_send_length and
// sock:sock_recv_length (Linux 6.3), which are hit at the end of each call, and
// sock:inet_sock_set_state.
//
// # Sampling by bytes
//
// The kernel filters hits by their size. A target has an event for each direction and
// each of four size classes. For each event, one of n calls is sampled, with n inversely
// proportional to the size of the class. The probability of sampling a call is therefore
// about proportional to its bytes. As long as there are fewer calls than
// max_events_per_second, each call is sampled. A call that is not sampled costs the
// program 0.1 µs.
//
// # Meaning of the values
//
// The kernel counts the hits of each event, and each sample contains this count. The
// number of calls that a sample represents is therefore known, not estimated. A sample
// represents its own call, and the calls of its class on the same CPU since the previous
// sample. These other calls were not selected or did not fit into a ring. The value of a
// sample is its bytes times the number of represented calls. n is redrawn at random
// around its mean, so that sampling does not run in lockstep with loops.
//
// The kernel filters out errors (ret below 0), ends of streams (0) and peeks (MSG_PEEK).
// It also filters out sockets of families other than IPv4, IPv6 and Unix, for example
// netlink. The tracepoints do not cover splice from a socket, TCP's zero-copy receive,
// and data that the kernel sends by itself.
//
// # Connections
//
// A connect is sampled when the TCP socket changes to SYN_SENT, which happens during the
// call. A connect has failed when the socket changes from SYN_SENT to CLOSE. This change
// happens when the kernel receives the answer or when its timer expires. Failures are
// recorded on all CPUs, because any process, or no process, may be running at this time.
// A failure is attributed to the stack of the connect with the same socket and remote
// address. If a program closes the socket before an answer arrives, the state changes in
// the same way. The failures of the whole host share the bound on samples, as if the host
// were a target. A program that only makes failing connects therefore costs no more than
// any other program. Retransmits and resets also happen outside of calls. They have no
// stack and are not sampled.
//
// The events of a process count the calls of each thread separately, so a thread that
// ends within its first n calls is not sampled. The events of cgroups and of the host
// count all calls on a CPU.
package network
