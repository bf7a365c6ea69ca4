// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package requests computes monitors from the spans and metrics that pass through the
// processor. Request monitors are error rates, response times and request rates. The
// monitor metric reads any other metric.
//
// An [Intake] observes batches on the goroutines that send them, and counts requests
// per resource. [Intake.Run] looks up the unit of each resource on a separate
// goroutine. At each collection interval, [Intake.Read] moves the counts of a unit's
// resources into the unit's windows. Each monitor covers its whole window, so that a
// percentile is not a mean of percentiles.
//
// The package identifies units by name. It does not know policies or gates.
package requests

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/globs"
)

// Metric is the name of the monitor that reads any metric. The names of the other monitors
// consist of a protocol and a quantity.
const Metric = "metric"

// protocol is the protocol of a request.
type protocol uint8

const (
	noProtocol protocol = iota
	overHTTP
	overRPC
)

// quantity is the value that is computed from the requests, or data points, in a window.
type quantity uint8

const (
	noQuantity quantity = iota
	errorRate
	averageTime
	percentileTime
	requestRate
	metricLast
	metricRate
	metricMean
	metricPercentile
)

// distributed reports whether the quantity needs a distribution of values.
func (q quantity) distributed() bool { return q == percentileTime || q == metricPercentile }

// kind describes one monitor.
type kind struct {
	protocol
	quantity
}

// kinds contains the monitors of this package by name.
var kinds = map[string]kind{
	"http_avg_response_time": {overHTTP, averageTime},
	"http_error_rate":        {overHTTP, errorRate},
	"http_request_rate":      {overHTTP, requestRate},
	"http_response_time":     {overHTTP, percentileTime},
	Metric:                   {noProtocol, metricLast},
	"rpc_avg_response_time":  {overRPC, averageTime},
	"rpc_error_rate":         {overRPC, errorRate},
	"rpc_request_rate":       {overRPC, requestRate},
	"rpc_response_time":      {overRPC, percentileTime},
}

// Monitors returns the names of the monitors of this package, sorted.
func Monitors() []string { return slices.Sorted(maps.Keys(kinds)) }

// Is reports whether this package provides a monitor.
func Is(monitor string) bool { return kinds[monitor].quantity != noQuantity }

// IsOfTimes reports whether a monitor is an error rate or a response time. Such monitors
// need a minimum number of requests.
func IsOfTimes(monitor string) bool { return Is(monitor) && kinds[monitor].quantity < requestRate }

// HasPercentile reports whether a monitor is a percentile. For the monitor "metric", the
// result depends on the statistic. Other monitors ignore statistic.
func HasPercentile(monitor, statistic string) bool {
	return Condition{Monitor: monitor, Statistic: statistic}.quantity().distributed()
}

// These are the statistics that the monitor "metric" supports.
const (
	Last       = "last"
	Rate       = "rate"
	Mean       = "mean"
	Percentile = "percentile"
)

var statistics = map[string]quantity{Last: metricLast, Rate: metricRate, Mean: metricMean, Percentile: metricPercentile}

// Condition contains the parameters of a policy's condition on a monitor of this package.
type Condition struct {
	// Monitor is the name of a monitor, such as http_error_rate.
	Monitor string `mapstructure:"monitor"`
	// Percentile selects the percentile of a response time or a metric, above 0 and below
	// 100. It is zero if the monitor is not a percentile. Default 95.
	Percentile float64 `mapstructure:"percentile"`
	// MinRequests is the minimum number of requests in the window. With fewer requests, an
	// error rate or a response time has no value. The default is 20.
	MinRequests int `mapstructure:"min_requests"`
	// URI and Methods select requests. By default both are empty, and all requests are
	// counted.
	URI     URI      `mapstructure:"uri"`
	Methods []string `mapstructure:"method"`
	// Statuses lists the statuses that an error rate counts as failed, such as 5xx, 404
	// or the RPC status UNAVAILABLE. If the list is empty, which is the default, 5xx and
	// the gRPC codes of server errors count as failed.
	Statuses []string `mapstructure:"statuses"`
	// Metric, Attributes and Statistic (last, rate, mean or percentile) are the parameters of
	// the monitor "metric". Statistic defaults to percentile if Percentile is set, and to last
	// otherwise.
	Metric     string            `mapstructure:"name"`
	Attributes map[string]string `mapstructure:"attributes"`
	Statistic  string            `mapstructure:"statistic"`
	// Span is the length of the window. If Counted is set, the condition counts readings
	// (period and count), and each reading covers one collection interval.
	Span    time.Duration `mapstructure:"-"`
	Counted bool          `mapstructure:"-"`
}

// URI selects requests whose route or path matches List or Regex.
type URI struct {
	// List contains globs. * matches within a path segment, and ** matches across segments.
	List []string `mapstructure:"list"`
	// Regex is a regular expression, which may match a part of the route or path.
	Regex string `mapstructure:"regex"`
}

// These limits apply to one condition.
const (
	maxURIs       = 64
	maxAttributes = 16
	maxMin        = 1_000_000
)

// Validate returns all faults. Each fault contains its configuration key. at
// is the key of the condition.
func (c Condition) Validate(at string) (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(at+"."+format, args...)) }
	of, q := kinds[c.Monitor].protocol, c.quantity()
	refuse := func(key string, set bool, monitors string) {
		if set {
			fault("%s: does not go with monitor %s: it is for %s", key, c.Monitor, monitors)
		}
	}
	if q.distributed() {
		if !(c.Percentile > 0 && c.Percentile < 100) {
			fault("percentile: %v is not allowed: must be above 0 and below 100", c.Percentile)
		}
	} else {
		refuse("percentile", c.Percentile != 0, "http_response_time, rpc_response_time, and metric with statistic percentile")
	}
	if !IsOfTimes(c.Monitor) {
		refuse("min_requests", c.MinRequests != 0, "error rates and response times")
	} else if c.MinRequests < 0 || c.MinRequests > maxMin {
		fault("min_requests: %d is not between 0 and %d", c.MinRequests, maxMin)
	}
	if q != errorRate {
		refuse("statuses", len(c.Statuses) > 0, "http_error_rate and rpc_error_rate")
	} else if _, err := statusesOf(of, c.Statuses); err != nil {
		fault("statuses%w", err)
	}
	if of == noProtocol {
		refuse("uri", len(c.URI.List) > 0 || c.URI.Regex != "", "monitors of http and rpc")
		refuse("method", len(c.Methods) > 0, "monitors of http and rpc")
	} else {
		c.validateRequests(fault)
	}
	if c.Monitor == Metric {
		c.validateMetric(fault)
	} else {
		refuse("name", c.Metric != "", Metric)
		refuse("attributes", len(c.Attributes) > 0, Metric)
		refuse("statistic", c.Statistic != "", Metric)
	}
	return errs
}

// validateRequests checks the keys that select requests.
func (c Condition) validateRequests(fault func(string, ...any)) {
	if len(c.URI.List) > maxURIs {
		fault("uri.list: has %d items: must be at most %d", len(c.URI.List), maxURIs)
	}
	for i, glob := range c.URI.List {
		if err := globs.Check(glob); err != nil {
			fault("uri.list[%d]: %w", i, err)
		}
	}
	if _, err := regexp.Compile(c.URI.Regex); err != nil {
		fault("uri.regex: %w", err)
	}
	for i, m := range c.Methods {
		if m == "" {
			fault("method[%d]: must not be empty", i)
		}
	}
}

func (c Condition) validateMetric(fault func(string, ...any)) {
	if c.Metric == "" {
		fault("name: must be set: it is the metric's name")
	}
	if _, ok := statistics[c.Statistic]; !ok {
		fault("statistic: %q is not one of %s, %s, %s, %s", c.Statistic, Last, Rate, Mean, Percentile)
	}
	if len(c.Attributes) > maxAttributes {
		fault("attributes: has %d items: must be at most %d", len(c.Attributes), maxAttributes)
	}
}

func (c Condition) quantity() quantity {
	if q, ok := statistics[c.Statistic]; ok && c.Monitor == Metric {
		return q
	}
	return kinds[c.Monitor].quantity
}

// Gauge reports whether a reading is a momentary value, which is averaged over a window. All
// other readings already cover the whole window.
func (c Condition) Gauge() bool { return c.quantity() == metricLast }

// Key returns a key for the monitor with its parameters and its window. Equal conditions
// have equal keys. A key begins with the monitor's name, which [Name] returns.
func (c Condition) Key() string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	add("name", c.Metric)
	for _, k := range slices.Sorted(maps.Keys(c.Attributes)) {
		add(k, strconv.Quote(c.Attributes[k]))
	}
	add("statistic", c.Statistic)
	if c.Percentile != 0 {
		add("percentile", strconv.FormatFloat(c.Percentile, 'g', -1, 64))
	}
	add("uri", strings.Join(sorted(c.URI.List), "|"))
	if c.URI.Regex != "" {
		add("regex", strconv.Quote(c.URI.Regex))
	}
	add("method", strings.Join(sorted(c.Methods), "|"))
	add("statuses", strings.Join(sorted(c.Statuses), "|"))
	if !c.Gauge() {
		add("min", strconv.Itoa(c.MinRequests))
		add("over", c.Span.String())
		if c.Counted {
			add("each", "reading")
		}
	}
	return c.Monitor + "(" + strings.Join(parts, " ") + ")"
}

func sorted(of []string) []string { return slices.Compact(slices.Sorted(slices.Values(of))) }

// Name returns the monitor's name from a key. A key without parameters is the name itself.
func Name(key string) string {
	name, _, _ := strings.Cut(key, "(")
	return name
}

// selection selects the requests, or the data points, that are counted together.
type selection struct {
	protocol
	uri      uint64 // bit of its pattern in plan.patterns; 0: no pattern
	methods  []string
	statuses statuses
	values   bool // a distribution is needed

	metric     string
	attributes []attribute
	quantity   quantity // of a metric
}

type attribute struct{ key, value string }

// query is a monitor with its parameters and its window.
type query struct {
	key       string
	selection int
	quantity
	percentile float64
	min        float64
	span       time.Duration
	counted    bool
}

// statuses is the bit set of failed statuses. The index is an HTTP status or a gRPC code.
type statuses [10]uint64

func (s *statuses) set(n int)      { s[n/64] |= 1 << (n % 64) }
func (s *statuses) has(n int) bool { return n >= 0 && n < 640 && s[n/64]>>(n%64)&1 != 0 }

// grpcCodes contains the names of the gRPC status codes, by number.
var grpcCodes = [...]string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

const (
	grpcUnknown  = 2
	httpInternal = 500
)

// serverFaults contains the gRPC codes that are server errors according to the semantic
// conventions.
var serverFaults = []string{"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}

// grpcCode returns the number of the gRPC code with this name, or -1 if there is no such
// code. Connect writes the names in lower case, and CANCELLED with one L.
func grpcCode(name string) int {
	if strings.EqualFold(name, "canceled") {
		return 1
	}
	return slices.IndexFunc(grpcCodes[:], func(s string) bool { return strings.EqualFold(s, name) })
}

// statusesOf parses statuses. An empty list selects the default statuses of the
// protocol. An error begins with the index of the status.
func statusesOf(p protocol, from []string) (out statuses, err error) {
	if len(from) == 0 {
		from = serverFaults
		if p == overHTTP {
			from = []string{"5xx"}
		}
	}
	for i, s := range from {
		n, notNumber := strconv.Atoi(s)
		switch {
		case p == overRPC && notNumber == nil && n >= 0 && n < len(grpcCodes):
			out.set(n)
		case p == overRPC && grpcCode(s) >= 0:
			out.set(grpcCode(s))
		case p == overRPC:
			return out, fmt.Errorf("[%d]: %q is not a code of gRPC such as UNAVAILABLE, or 0 to %d", i, s, len(grpcCodes)-1)
		case notNumber == nil && n >= 100 && n < 600:
			out.set(n)
		case len(s) == 3 && s[0] >= '1' && s[0] <= '5' && strings.EqualFold(s[1:], "xx"):
			for n := range 100 {
				out.set(int(s[0]-'0')*100 + n)
			}
		default:
			return out, fmt.Errorf("[%d]: %q is not a status such as 503, or a class such as 5xx", i, s)
		}
	}
	return out, nil
}
