// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

// environment is what a process's environment says about its service.
type environment struct {
	serviceName, serviceNamespace, serviceVersion, serviceInstance, deployment string
}
