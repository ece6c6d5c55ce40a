// Package kubernetes tests the manifests in deploy/kubernetes. It is a module of its own, so that the types of
// Kubernetes are no dependency of the dispatcher.
package kubernetes
