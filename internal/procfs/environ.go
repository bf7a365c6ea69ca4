// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import "bytes"

// MaxEnviron is the most that is read of an environ file, in bytes; the kernel's
// usual bound is 2 MiB.
const MaxEnviron = 128 << 10

// Getenv returns the value of a variable in the content of /proc/PID/environ. Of
// one that is set twice the first counts, as for getenv(3).
func Getenv(environ []byte, name string) (value []byte, ok bool) {
	for len(environ) > 0 {
		var variable []byte
		variable, environ, _ = bytes.Cut(environ, []byte{0})
		if len(variable) > len(name) && variable[len(name)] == '=' && string(variable[:len(name)]) == name {
			return variable[len(name)+1:], true
		}
	}
	return nil, false
}
