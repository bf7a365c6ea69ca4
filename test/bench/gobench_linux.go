// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const module = "github.com/hotprofile/hotprofile/"

// goBenchmarks runs the chosen benchmarks and summarizes them with benchstat.
func (b *bench) goBenchmarks(ctx context.Context) error {
	results := filepath.Join(b.dir, "benchmarks.txt")
	out, err := os.Create(results)
	if err != nil {
		return err
	}
	defer out.Close()
	var errs []error
	all := slices.Concat(hotPaths, growth)
	for _, pkg := range packagesOf(all) {
		if err := b.benchmarkPackage(ctx, pkg, all, out); err != nil {
			errs = append(errs, fmt.Errorf("benchmarks of %s: %w", pkg, err))
		}
		if ctx.Err() != nil {
			return errors.Join(errs...)
		}
	}
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile=internal/tools/go.mod", "benchstat", "-format", "csv", results)
	cmd.Dir = b.source
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("sum the benchmarks up: %w\n%s", err, stderr.String()))...)
	}
	measured, err := parseBenchstat(bytes.NewReader(text))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	b.hotPathTable(measured)
	return errors.Join(errs...)
}

func packagesOf(paths []hotPath) (packages []string) {
	for _, p := range paths {
		if !slices.Contains(packages, p.pkg) {
			packages = append(packages, p.pkg)
		}
	}
	return packages
}

// benchmarkPackage builds the package's tests once, and runs each chosen benchmark
// separately.
func (b *bench) benchmarkPackage(ctx context.Context, pkg string, paths []hotPath, out io.Writer) error {
	progress("Go benchmarks of %s", pkg)
	dir := filepath.Join(b.source, pkg)
	binary := filepath.Join(b.dir, "bench.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, ".")
	build.Dir = dir
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, text)
	}
	var names []string
	for _, p := range paths {
		for _, name := range []string{p.ours, p.baseline} {
			if p.pkg == pkg && name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	var errs []error
	for _, name := range names {
		limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
		run := exec.CommandContext(limited, binary, "-test.run", "^$", "-test.bench", pattern(name), "-test.benchmem",
			"-test.count", fmt.Sprint(b.count), "-test.benchtime", b.benchTime)
		run.Dir = dir
		text, err := run.CombinedOutput()
		cancel()
		_, _ = out.Write(text)
		if err == nil && !bytes.Contains(text, []byte("ns/op")) {
			err = errors.New("it measured nothing; is it skipped here?")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w: %s", name, err, lastLine(text)))
		}
	}
	return errors.Join(errs...)
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// pattern returns a pattern for -test.bench that matches only the benchmark called name.
// The pattern matches each level of the name separately.
func pattern(name string) string {
	var levels []string
	for i, level := range strings.Split(name, "/") {
		if i == 0 {
			level = "Benchmark" + level
		}
		levels = append(levels, "^"+regexp.QuoteMeta(level)+"$")
	}
	return strings.Join(levels, "/")
}

// figures contains the results of one benchmark. The keys are benchstat's
// units, such as sec/op and allocs/op.
type figures map[string]figure

// figure is a median. around is its uncertainty, such as "3%".
type figure struct {
	median float64
	around string
}

// parseBenchstat reads benchstat's tables. Each key of the result consists of the
// package and the name of a benchmark.
func parseBenchstat(r io.Reader) (map[string]figures, error) {
	reader := csv.NewReader(r)
	reader.FieldsPerRecord = -1
	measured := map[string]figures{}
	pkg, unit := "", ""
	for {
		row, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return measured, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read benchstat's tables: %w", err)
		}
		if value, ok := strings.CutPrefix(row[0], "pkg: "); ok {
			pkg = strings.TrimPrefix(value+"/", module)
			continue
		}
		if len(row) < 3 {
			continue
		}
		if row[0] == "" {
			unit = row[1] // or the name of the file, in the line above
			continue
		}
		median, err := strconv.ParseFloat(row[1], 64)
		if err != nil || row[0] == "geomean" {
			continue
		}
		key := pkg + processors.ReplaceAllString(row[0], "")
		if measured[key] == nil {
			measured[key] = figures{}
		}
		measured[key][unit] = figure{median: median, around: row[2]}
	}
}

// processors matches GOMAXPROCS at the end of a benchmark's name.
var processors = regexp.MustCompile(`-\d+$`)

func (b *bench) hotPathTable(measured map[string]figures) {
	text := func(p hotPath, name string) (cost, allocations string, seconds float64) {
		got, ok := measured[p.pkg+"/"+name]["sec/op"]
		if !ok {
			return "not measured", "-", 0
		}
		per := max(p.per, 1)
		allocs := measured[p.pkg+"/"+name]["allocs/op"].median / per
		return fmt.Sprintf("%s ± %s", duration(got.median/per), got.around), strconv.FormatFloat(allocs, 'g', 3, 64), got.median / per
	}
	of := func(p hotPath) string {
		if p.unit == "" {
			return p.shows
		}
		return p.shows + ", for each " + p.unit
	}
	fmt.Fprintf(b.out, "### Hot paths\n\nGo benchmarks, %d runs each of `-benchtime %s`, summed up by benchstat: the median, and how far it may be off.\n\n", b.count, b.benchTime)
	t := table{"what", "takes", "allocations", "beside", "takes", "times"}
	t.head(b.out)
	for _, p := range hotPaths {
		cost, allocs, ours := text(p, p.ours)
		against, beside, times := "-", "-", "-"
		if p.baseline != "" {
			var base float64
			against = p.against
			if beside, _, base = text(p, p.baseline); base > 0 && ours > 0 {
				times = strconv.FormatFloat(ours/base, 'g', 3, 64)
			}
		}
		t.row(b.out, of(p), cost, allocs, against, beside, times)
	}
	fmt.Fprintf(b.out, "\n### How the cost grows\n\n")
	t = table{"what", "takes", "allocations"}
	t.head(b.out)
	for _, p := range growth {
		cost, allocs, _ := text(p, p.ours)
		t.row(b.out, of(p), cost, allocs)
	}
	fmt.Fprintln(b.out)
}

// duration formats a time with three digits.
func duration(seconds float64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"s", 1}, {"ms", 1e-3}, {"µs", 1e-6}} {
		if seconds >= u.size {
			return threeDigits(seconds/u.size) + " " + u.name
		}
	}
	return threeDigits(seconds*1e9) + " ns"
}

func threeDigits(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
