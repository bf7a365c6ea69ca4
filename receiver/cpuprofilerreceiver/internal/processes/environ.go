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

// maxValue bounds values that come from processes, in bytes.
const maxValue = 1024

// environment is the description of a service in the environment variables of a process.
type environment struct {
	serviceName, serviceNamespace, serviceVersion, serviceInstance, deployment string
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
	keys := [...]string{attr.ServiceName, attr.ServiceNamespace, attr.ServiceVersion, attr.ServiceInstanceID, attr.DeploymentEnvironment}
	fields := [...]*string{&env.serviceName, &env.serviceNamespace, &env.serviceVersion, &env.serviceInstance, &env.deployment}
	for pair := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(pair, "=")
		i := slices.Index(keys[:], strings.TrimSpace(key))
		if !ok || i < 0 {
			continue
		}
		value = strings.TrimSpace(value)
		if decoded, err := url.PathUnescape(value); err == nil {
			value = decoded
		}
		*fields[i] = text([]byte(value), maxValue)
	}
	return env
}
