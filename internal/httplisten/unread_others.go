// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package httplisten

import "syscall"

// hasUnread always returns false, because the check is implemented only for Linux. A
// connection may therefore be closed as idle although its first bytes have arrived.
func hasUnread(syscall.RawConn) bool { return false }
