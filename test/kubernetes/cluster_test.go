// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package kubernetes

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var (
	clusterDir = flag.String("cluster", "", "the directory of the cluster; cluster.sh sets it")
	binDir     = flag.String("bin", "../../bin", "the directory of what make kubernetes builds")
)

const (
	nodeIP   = "192.168.77.1"
	nodeName = "node-1"
	token    = "admin-token"
	// These are the complete names of the images, as the kubelet uses them.
	collectorImage = "docker.io/library/otelcol-hotprofile:test"
	loadImage      = "docker.io/library/hotprofile-load:test"
)

// cluster runs etcd, containerd and the programs of Kubernetes in the
// namespaces that cluster.sh has created. It has no kube-proxy. Instead, the
// API server listens at the address of its Service, and the test's DNS server
// resolves other Services to their pods.
type cluster struct {
	*testing.T
	dir, bin   string
	client     *kubernetes.Clientset
	config     *rest.Config
	kubeconfig string
	// stopAPIServer kills the API server. The returned function starts the server again.
	stopAPIServer func() (restart func())
	logs          *logs
}

func (c *cluster) check(err error, what ...any) {
	c.Helper()
	if err != nil {
		c.Fatal(append([]any{err}, what...)...)
	}
}

func (c *cluster) write(name, content string) string {
	c.Helper()
	path := filepath.Join(c.dir, name)
	c.check(os.MkdirAll(filepath.Dir(path), 0o755))
	c.check(os.WriteFile(path, []byte(content), 0o644))
	return path
}

// start starts a program that runs until the test ends. The output goes to a file.
func (c *cluster) start(name string, args ...string) *exec.Cmd {
	c.Helper()
	out, err := os.OpenFile(filepath.Join(c.dir, filepath.Base(name)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	c.check(err)
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.check(cmd.Start())
	c.Cleanup(func() {
		if c.Failed() {
			c.Logf("the end of %s:\n%s", out.Name(), tail(out.Name(), 4))
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func tail(path string, lines int) string {
	content, _ := os.ReadFile(path)
	all := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// run runs a program to its end and returns its output.
func (c *cluster) run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HOME="+c.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// within waits until done returns true. It fails the test
// if this takes longer than limit.
func (c *cluster) within(limit time.Duration, what string, done func() bool) {
	c.Helper()
	for begin := time.Now(); !done(); time.Sleep(200 * time.Millisecond) {
		if time.Since(begin) > limit {
			c.Fatalf("after %v not yet: %s", limit, what)
		}
	}
	c.Logf("%s: %s", time.Now().Format("15:04:05"), what)
}

func startCluster(t *testing.T) *cluster {
	if *clusterDir == "" {
		t.Skip("run make kubernetes")
	}
	bin, err := filepath.Abs(*binDir)
	c := &cluster{T: t, dir: *clusterDir, bin: bin, logs: new(logs)}
	c.check(err)

	c.start("etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", "http://127.0.0.1:2379",
		"--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380")
	socket := filepath.Join(c.dir, "containerd.sock")
	c.write("cni/10-bridge.conflist", `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`)
	c.start("containerd", "--config", c.write("containerd.toml", fmt.Sprintf(`version = 2
root = "%[1]s/containerd"
state = "/run/containerd"
[grpc]
  address = %[2]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[3]q
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
`, c.dir, socket, loadImage)))

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	c.check(err)
	keyFile := c.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	c.kubeconfig = c.write("kubeconfig", fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "https://%s:443", "insecure-skip-tls-verify": true}}],
		"users": [{"name": "c", "user": {"token": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`, nodeIP, token))
	tokens := c.write("tokens.csv", token+",admin,admin,system:masters\n")
	program := func(name string) string { return filepath.Join(bin, "kubernetes", name) }
	startAPIServer := func() *exec.Cmd {
		return c.start(program("kube-apiserver"), "--etcd-servers", "http://127.0.0.1:2379", "--token-auth-file", tokens,
			"--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile, "--service-account-issuer", "https://kubernetes.default.svc",
			"--cert-dir", filepath.Join(c.dir, "certs"), "--authorization-mode", "Node,RBAC", "--service-cluster-ip-range", "10.96.0.0/24",
			"--advertise-address", nodeIP, "--secure-port", "443", "--kubelet-preferred-address-types", "InternalIP")
	}
	running := startAPIServer()
	c.stopAPIServer = func() func() {
		c.check(running.Process.Kill())
		_ = running.Wait()
		return func() {
			running = startAPIServer()
			c.within(2*time.Minute, "API server ready again", c.ready)
		}
	}
	c.config = &rest.Config{Host: "https://" + nodeIP + ":443", BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 100, Burst: 100}
	c.client, err = kubernetes.NewForConfig(c.config)
	c.check(err)
	c.within(2*time.Minute, "API server ready", c.ready)
	c.start(program("kube-controller-manager"), "--kubeconfig", c.kubeconfig, "--service-account-private-key-file", keyFile,
		"--root-ca-file", filepath.Join(c.dir, "certs", "apiserver.crt"), "--leader-elect=false", "--secure-port", "0")
	c.start(program("kube-scheduler"), "--kubeconfig", c.kubeconfig, "--leader-elect=false", "--secure-port", "0")

	c.importImage(socket, collectorImage, map[string]string{"otelcol-hotprofile": filepath.Join(bin, "otelcol-hotprofile-kubernetes")},
		"/otelcol-hotprofile")
	c.importImage(socket, loadImage, map[string]string{"load": filepath.Join(bin, "load"), "pod": filepath.Join(bin, "pod")}, "/pod")
	c.serveDNS()
	c.start(program("kubelet"), "--kubeconfig", c.kubeconfig, "--root-dir", filepath.Join(c.dir, "kubelet"), "--cert-dir", filepath.Join(c.dir, "kubelet-certs"),
		"--hostname-override", nodeName, "--node-ip", nodeIP, "--config", c.write("kubelet.yaml", fmt.Sprintf(`
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%[1]s
cgroupDriver: cgroupfs
cgroupRoot: /hotprofile-cluster
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
evictionHard: {memory.available: 1Mi, nodefs.available: 0.1%%, nodefs.inodesFree: 0.1%%, imagefs.available: 0.1%%}
imageGCHighThresholdPercent: 100
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
clusterDNS: [%[2]s]
clusterDomain: cluster.local
podLogsDir: %[3]s/logs
volumePluginDir: %[3]s/plugins
resolvConf: %[4]s
syncFrequency: 2s
`, socket, nodeIP, c.dir, c.write("resolv.conf", "nameserver "+nodeIP+"\n"))))
	c.within(2*time.Minute, "node ready", func() bool {
		node, err := c.client.CoreV1().Nodes().Get(context.Background(), nodeName, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				return condition.Status == corev1.ConditionTrue
			}
		}
		return false
	})
	return c
}

func (c *cluster) ready() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err == nil
}

// importImage creates an image with one layer and no base image, and imports it.
func (c *cluster) importImage(socket, name string, files map[string]string, entrypoint string) {
	c.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for name, path := range files {
		content, err := os.ReadFile(path)
		c.check(err)
		c.check(w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}))
		_, err = w.Write(content)
		c.check(err)
	}
	c.check(w.Close())
	archive, err := os.Create(filepath.Join(c.dir, "image.tar"))
	c.check(err)
	defer archive.Close()
	out := tar.NewWriter(archive)
	add := func(name string, content []byte) {
		c.check(out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}))
		_, err := out.Write(content)
		c.check(err)
	}
	blob := func(mediaType string, content []byte) map[string]any {
		sum := sha256.Sum256(content)
		digest := hex.EncodeToString(sum[:])
		add("blobs/sha256/"+digest, content)
		return map[string]any{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(content)}
	}
	marshal := func(v any) []byte { content, err := json.Marshal(v); c.check(err); return content }
	add("oci-layout", []byte(`{"imageLayoutVersion": "1.0.0"}`))
	root := blob("application/vnd.oci.image.layer.v1.tar", layer.Bytes())
	config := blob("application/vnd.oci.image.config.v1+json", marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Entrypoint": []string{entrypoint}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{root["digest"]}},
	}))
	manifest := blob("application/vnd.oci.image.manifest.v1+json", marshal(map[string]any{"schemaVersion": 2, "config": config, "layers": []any{root}}))
	manifest["annotations"] = map[string]string{"io.containerd.image.name": name}
	add("index.json", marshal(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}}))
	c.check(out.Close())
	var said string
	c.within(time.Minute, name+" imported", func() bool {
		said, err = c.run("ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", "--snapshotter", "native", archive.Name())
		if err != nil {
			c.Log(said)
		}
		return err == nil
	})
}

// serveDNS resolves Services to the addresses of their ready pods.
func (c *cluster) serveDNS() {
	conn, err := net.ListenPacket("udp", nodeIP+":53")
	c.check(err)
	c.Cleanup(func() { conn.Close() })
	go func() {
		for buf := make([]byte, 1500); ; {
			n, peer, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			q := m.Questions[0]
			name, ok := strings.CutSuffix(q.Name.String(), ".svc.cluster.local.")
			service, namespace, two := strings.Cut(name, ".")
			if !ok || !two || strings.Contains(namespace, ".") {
				m.RCode = dnsmessage.RCodeNameError
			} else if q.Type == dnsmessage.TypeA {
				slices, err := c.client.DiscoveryV1().EndpointSlices(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
				if err != nil {
					m.RCode = dnsmessage.RCodeServerFailure
				} else {
					for _, slice := range slices.Items {
						for _, e := range slice.Endpoints {
							if e.Conditions.Ready == nil || *e.Conditions.Ready {
								m.Answers = append(m.Answers, dnsmessage.Resource{
									Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
									Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(e.Addresses[0]).To4())},
								})
							}
						}
					}
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, peer)
			}
		}
	}()
}

// logs holds the log lines of all collectors in the cluster.
type logs struct {
	mu    sync.Mutex
	lines []string
}

// find returns the lines that contain all texts.
func (l *logs) find(texts ...string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
lines:
	for _, line := range l.lines {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}

// follow reads the logs of all collectors in the cluster until the test ends. Each line
// is prefixed with the pod's namespace and name. The files stay open, because the kubelet
// removes them together with their pod.
func (c *cluster) follow() {
	stop, stopped := make(chan struct{}), make(chan struct{})
	c.Cleanup(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		open := map[string]*bufio.Reader{}
		parts := map[string]string{}
		for {
			paths, _ := filepath.Glob(filepath.Join(c.dir, "logs", "*", "collector", "*.log"))
			for _, path := range paths {
				if open[path] == nil {
					if file, err := os.Open(path); err == nil {
						defer file.Close()
						open[path] = bufio.NewReader(file)
					}
				}
			}
			for path, file := range open {
				for {
					text, err := file.ReadString('\n')
					parts[path] += text
					if err != nil {
						break
					}
					// The container runtime writes a time, a
					// stream and a tag before each line.
					fields := strings.SplitN(strings.TrimSpace(parts[path]), " ", 4)
					parts[path] = ""
					c.logs.mu.Lock()
					c.logs.lines = append(c.logs.lines, filepath.Base(filepath.Dir(filepath.Dir(path)))+" "+fields[len(fields)-1])
					c.logs.mu.Unlock()
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
}
