// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Row holds the readings of one moment.
type Row struct {
	// At is the time since the beginning of the trace, in seconds.
	At float64
	// CPU is the cgroup's total CPU time in seconds. It decreases
	// if the cgroup was created again.
	CPU float64
	// Capacity is the number of cores that the unit may use.
	Capacity float64
	// Periods is the number of CFS periods so far. Throttled is the number of periods in
	// which the cgroup with the smallest quota was throttled.
	Periods, Throttled uint64
}

const columns = "seconds,cpu_seconds,capacity_cores,nr_periods,nr_throttled"

// WriteTrace writes a trace as CSV. The header lines come first, as comments.
func WriteTrace(w io.Writer, header []string, rows []Row) error {
	b := bufio.NewWriter(w)
	for _, h := range header {
		fmt.Fprintln(b, "#", h)
	}
	fmt.Fprintln(b, columns)
	for _, r := range rows {
		fmt.Fprintf(b, "%.3f,%.6f,%s,%d,%d\n", r.At, r.CPU, strconv.FormatFloat(r.Capacity, 'g', -1, 64), r.Periods, r.Throttled)
	}
	return b.Flush()
}

// ReadTrace reads a trace that WriteTrace has written.
func ReadTrace(r io.Reader) (header []string, rows []Row, err error) {
	scan := bufio.NewScanner(r)
	for n, titled := 1, false; scan.Scan(); n++ {
		line := scan.Text()
		if comment, ok := strings.CutPrefix(line, "# "); ok {
			header = append(header, comment)
			continue
		}
		if !titled {
			if line != columns {
				return nil, nil, fmt.Errorf("line %d: the columns must be %s", n, columns)
			}
			titled = true
			continue
		}
		row, err := parseRow(line)
		if err != nil {
			return nil, nil, fmt.Errorf("line %d, %.60q: %w", n, line, err)
		}
		if len(rows) > 0 && row.At <= rows[len(rows)-1].At {
			return nil, nil, fmt.Errorf("line %d: time runs backwards", n)
		}
		rows = append(rows, row)
	}
	return header, rows, scan.Err()
}

func parseRow(line string) (r Row, err error) {
	f := strings.Split(line, ",")
	if len(f) != 5 {
		return r, errors.New("a line must have five columns")
	}
	for i, to := range []*float64{&r.At, &r.CPU, &r.Capacity} {
		v, err := strconv.ParseFloat(f[i], 64)
		if err != nil {
			return r, err
		}
		if !(v >= 0 && v < 1e12) {
			return r, errors.New("a figure is out of range")
		}
		*to = v
	}
	for i, to := range []*uint64{&r.Periods, &r.Throttled} {
		if *to, err = strconv.ParseUint(f[3+i], 10, 64); err != nil {
			return r, err
		}
	}
	return r, nil
}
