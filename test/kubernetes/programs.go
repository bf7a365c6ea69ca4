// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package kubernetes pins the programs of Kubernetes that cluster.sh builds.
package kubernetes

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	_ "k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "k8s.io/kubernetes/cmd/kubelet/app"
)
