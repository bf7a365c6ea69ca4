// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package network samples which code sends and receives bytes over sockets, and which
// begins TCP connections, by the kernel's tracepoints: sock:sock_send_length and
// sock:sock_recv_length (Linux 6.3) at the end of each call, and
// sock:inet_sock_set_state.
//
// # Sampled by bytes
//
// The kernel filters hits by their size: a target has an event for each of four classes
// of sizes and each direction, of which one of n calls is sampled, with n inversely
// proportional to the size of the class. So a call is sampled with a probability that is
// about proportional to its bytes. As long as fewer calls are made than
// max_events_per_second, each is sampled. Calls that are not sampled cost the program a
// tenth of a microsecond.
//
// # What the values mean
//
// The kernel counts the hits of each event, and a sample has this count. So the number of
// calls that a sample represents is known, not estimated: its own, and those of its class
// on the same CPU since the sample before, whether these were not selected or did not fit
// a ring. Its value is its bytes times that number. n is drawn at random around its mean
// again and again, so that sampling does not run in lockstep with loops.
//
// Errors (ret below 0), ends of streams (0) and peeks (MSG_PEEK) are filtered out in the
// kernel, as are sockets of other families than IPv4, IPv6 and Unix: netlink, for one.
// What is not a call on a socket is not seen: splice from a socket, TCP's zero-copy
// receive, and what the kernel sends by itself.
//
// # Connections
//
// A connect is the transition of a TCP socket to SYN_SENT, which happens in the call. It
// has failed when the socket goes from SYN_SENT to CLOSE. That happens wherever the
// kernel receives the answer or its timer runs, in any process or in none, so it is
// recorded on all CPUs and attributed to the stack of the connect, by the socket and the
// remote address. Closing the socket before an answer is such a transition too. Those of
// the whole host have a part in the bound on samples, as if the host were a target: a
// program that does nothing but connect in vain costs no more than any other.
// Retransmits and resets happen there too, and belong to no call: they have no stack and
// are not here.
//
// Events of a process count the calls of each thread separately, and so do not sample a
// thread that ends within its first n; events of cgroups and of the host count all calls
// of a CPU.
package network
