// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// kernelHalf is the first address of the kernel on amd64 and arm64.
const kernelHalf = 1 << 63

// OfScript reads the output of `perf script --no-inline -F tid,ip,sym`. The output for
// each sample is a line with the thread, a line with the address and the function of
// each frame, and an empty line.
func OfScript(r io.Reader) (p Profile, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	var frames []Frame
	flush := func() {
		if len(frames) > 0 {
			p.Samples = append(p.Samples, Sample{Stack: frames, Count: 1})
		}
		frames = nil
	}
	for lines.Scan() {
		line := lines.Text()
		ip, function, isFrame := strings.Cut(strings.TrimLeft(line, " \t"), " ")
		switch {
		case strings.TrimSpace(line) == "":
			flush()
		case strings.HasPrefix(line, "\t"):
			address, err := strconv.ParseUint(ip, 16, 64)
			if err != nil || !isFrame {
				return p, fmt.Errorf("read what perf script prints: %q is no frame", line)
			}
			frames = append(frames, Frame{Functions: []string{strings.TrimSpace(function)}, Kernel: address >= kernelHalf})
		}
	}
	flush()
	return p, lines.Err()
}
