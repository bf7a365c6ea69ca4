// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package network samples code that sends and receives bytes over sockets, and code that
// begins TCP connections. It uses the kernel's tracepoints sock:sock_send_length and
// sock:sock_recv_length (Linux 6.3) at the end of each call, and sock:inet_sock_set_state.
//
// # Sampled by bytes
//
// The kernel filters hits by their size. A target has an event for each of four classes of
// sizes and each direction. Of each event one of n calls is sampled, with n inversely
// proportional to the size of the class. So the probability to sample a call is about
// proportional to its bytes. As long as there are fewer calls than max_events_per_second,
// each is sampled. A call that is not sampled costs the program 0.1 µs.
//
// # What the values mean
//
// The kernel counts the hits of each event, and a sample has this count. So the number of
// calls that a sample represents is known, not estimated. It is the sample's own call, and
// the calls of its class on the same CPU since the previous sample. These calls were not
// selected or did not fit into a ring. The value of a sample is its bytes times this
// number. n is drawn repeatedly at random around its mean, so that sampling does not run in
// lockstep with loops.
//
// The kernel filters out errors (ret below 0), ends of streams (0) and peeks (MSG_PEEK). It
// also filters out sockets of other families than IPv4, IPv6 and Unix, for example netlink.
// The tracepoints do not cover splice from a socket, TCP's zero-copy receive, and data that
// the kernel sends by itself.
//
// # Connections
//
// A connect is the transition of a TCP socket to SYN_SENT, which happens in the call. It
// has failed when the socket goes from SYN_SENT to CLOSE. This happens where the kernel
// receives the answer or its timer runs, in any process or in none. So it is recorded on
// all CPUs and attributed to the stack of the connect, by the socket and the remote
// address. Closing the socket before an answer is the same transition. The failures of the
// whole host have a part in the bound on samples, as if the host were a target. So a
// program that only makes failing connects costs no more than any other program.
// Retransmits and resets also happen outside of calls. They have no stack and are not
// sampled.
//
// Events of a process count the calls of each thread separately. So they do not sample a
// thread that ends within its first n calls. Events of cgroups and of the host count all
// calls of a CPU.
package network
