// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"net/url"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// maxValue is the maximum length of a value that comes from a process, in bytes.
const maxValue = 1024

// environment is the description of a service in the environment variables of a process.
type environment struct {
	serviceName, serviceNamespace, serviceVersion, serviceInstance, deployment string
}

// environmentKeys are the attributes of an environment, in the order of its fields.
var environmentKeys = [...]string{attr.ServiceName, attr.ServiceNamespace, attr.ServiceVersion, attr.ServiceInstanceID, attr.DeploymentEnvironment}

func (e *environment) fields() [len(environmentKeys)]*string {
	return [...]*string{&e.serviceName, &e.serviceNamespace, &e.serviceVersion, &e.serviceInstance, &e.deployment}
}

// set sets the value of an attribute. It ignores attributes other than environmentKeys.
func (e *environment) set(key, value string) {
	if i := slices.Index(environmentKeys[:], key); i >= 0 {
		*e.fields()[i] = text([]byte(value), maxValue)
	}
}

// bytes returns the number of bytes in the values.
func (e *environment) bytes() (n int) {
	for _, value := range e.fields() {
		n += len(*value)
	}
	return n
}

// parseEnviron reads the content of an environ file.
func parseEnviron(b []byte) environment {
	attributes, _ := procfs.Getenv(b, "OTEL_RESOURCE_ATTRIBUTES")
	env := parseResourceAttributes(string(attributes))
	if name, _ := procfs.Getenv(b, "OTEL_SERVICE_NAME"); len(name) > 0 {
		env.serviceName = text(name, maxValue)
	}
	return env
}

// parseResourceAttributes parses the value of OTEL_RESOURCE_ATTRIBUTES like OpenTelemetry's
// SDKs, so that a service has the same name in profiles and traces. It skips a pair without
// "=". It keeps a value with invalid percent-encoding unchanged.
func parseResourceAttributes(s string) environment {
	var env environment
	for pair := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		if decoded, err := url.PathUnescape(value); err == nil {
			value = decoded
		}
		env.set(strings.TrimSpace(key), value)
	}
	return env
}
