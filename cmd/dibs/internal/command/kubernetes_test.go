//go:build unix

package command_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// manifest is what a document of a manifest may have. A field that is not here is an error.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Data       map[string]string
	Spec       struct {
		Replicas int
		Selector any
		Ports    []struct {
			Name       string
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Grace    int64 `yaml:"terminationGracePeriodSeconds"`
				Security struct {
					Group int `yaml:"fsGroup"`
				} `yaml:"securityContext"`
				Inits      []container `yaml:"initContainers"`
				Containers []container
				Volumes    []volume
			}
		}
	}
}

type volume struct {
	Name      string
	ConfigMap struct{ Name string } `yaml:"configMap"`
	EmptyDir  *struct{}             `yaml:"emptyDir"`
	Secret    struct {
		Name  string `yaml:"secretName"`
		Items []struct{ Key, Path string }
	}
}

type container struct {
	Name, Image string
	Restart     string `yaml:"restartPolicy"`
	Args        []string
	Env         []struct {
		Name      string
		ValueFrom struct {
			Secret struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	Ports []struct {
		Name string
		Port int `yaml:"containerPort"`
	}
	Liveness  probe `yaml:"livenessProbe"`
	Readiness probe `yaml:"readinessProbe"`
	Startup   probe `yaml:"startupProbe"`
	Lifecycle struct {
		PreStop struct{ Sleep struct{ Seconds int64 } } `yaml:"preStop"`
	}
	Resources struct{ Requests, Limits map[string]string }
	Security  struct {
		Escalation   bool `yaml:"allowPrivilegeEscalation"`
		Capabilities struct{ Drop []string }
		ReadOnly     bool                  `yaml:"readOnlyRootFilesystem"`
		NonRoot      bool                  `yaml:"runAsNonRoot"`
		Seccomp      struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Mounts []struct {
		Name string
		Path string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	Get      get `yaml:"httpGet"`
	Exec     struct{ Command []string }
	Period   int `yaml:"periodSeconds"`
	Timeout  int `yaml:"timeoutSeconds"`
	Failures int `yaml:"failureThreshold"`
}

type get struct{ Path, Port, Scheme string }

// readManifest returns the documents of a manifest by their kind. kubectl checks the Deployment.
func readManifest(t *testing.T, name string) map[string]manifest {
	t.Helper()
	all := map[string]manifest{}
	for text := range strings.SplitSeq(readDeploy(t, name), "\n---\n") {
		var m manifest
		testkit.Must(t, yaml.UnmarshalWithOptions([]byte(text), &m, yaml.Strict()))
		all[m.Kind] = m
		if m.Kind == "Deployment" {
			checkKubectl(t, text)
		}
	}
	return all
}

// checkRights: the program has no rights, and its store is from a Secret.
func (c *container) checkRights(t *testing.T) {
	t.Helper()
	if e := c.Env[0]; len(c.Env) != 1 || e.Name != "DIBS_STORE" || e.ValueFrom.Secret.Key != "store" {
		t.Errorf("the environment is %v", c.Env)
	}
	if s := c.Security; !s.NonRoot || !s.ReadOnly || s.Escalation || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("its rights are %v", s)
	}
}

// TestKubernetesManifest: the proxy of the pod serves with its ConfigMap, its probes ask
// what the proxy answers, and the application outlives the proxy's drain.
func TestKubernetesManifest(t *testing.T) {
	all := readManifest(t, "kubernetes.yaml")
	pod := all["Deployment"].Spec.Template.Spec
	config := all["ConfigMap"].Data["proxy.yaml"]
	application, proxy := pod.Containers[0], pod.Containers[1]
	if v := pod.Volumes[0]; v.ConfigMap.Name != all["ConfigMap"].Metadata.Name || proxy.Mounts[0].Name != v.Name || proxy.Mounts[0].Path != "/etc/dibs" {
		t.Errorf("the configuration is mounted as %v from %v", proxy.Mounts, v)
	}
	proxy.checkRights(t)
	ports := map[string]int{}
	for _, p := range proxy.Ports {
		ports[p.Name] = p.Port
	}
	if ports["http"] != 8080 || ports["admin"] != 9090 || all["Service"].Spec.Ports[0].TargetPort != "http" {
		t.Errorf("the ports are %v, the service is %v", ports, all["Service"].Spec.Ports)
	}
	if proxy.Liveness.Get != (get{"/healthz", "admin", ""}) || proxy.Readiness.Get != (get{"/readyz", "admin", ""}) {
		t.Errorf("the probes are %v and %v", proxy.Liveness, proxy.Readiness)
	}
	// A root that is read-only has no other folder for long bodies.
	if v, m := pod.Volumes[1], proxy.Mounts[1]; v.EmptyDir == nil || m.Name != v.Name || m.Path != "/tmp" {
		t.Errorf("/tmp is %v of %v", m, v)
	}
	drained := proxy.Lifecycle.PreStop.Sleep.Seconds + int64(drainOf(t, config)/time.Second)
	if kept := application.Lifecycle.PreStop.Sleep.Seconds; drained == 0 || kept < drained || pod.Grace <= kept {
		t.Errorf("the proxy may take %d s, the application ends after %d s, the pod after %d s", drained, kept, pod.Grace)
	}
	t.Run("serves", func(t *testing.T) {
		(&deployed{args: proxy.Args, config: config, upstream: "http://127.0.0.1:3000", store: newBench(t).store}).checkServes(t)
	})
}

// TestKubernetesService: the server of the pods serves with its tokens and its certificate, and
// its probes ask what it answers without a token.
func TestKubernetesService(t *testing.T) {
	all := readManifest(t, "kubernetes-serve.yaml")
	pod := all["Deployment"].Spec.Template.Spec
	server := pod.Containers[0]
	server.checkRights(t)
	if p := server.Ports[0]; p.Name != "https" || p.Port != 7331 || all["Service"].Spec.Ports[0].TargetPort != p.Name || all["Service"].Spec.Ports[0].Port != 443 {
		t.Errorf("the port is %v, the service is %v", p, all["Service"].Spec.Ports)
	}
	if server.Liveness.Get != (get{"/healthz", "https", "HTTPS"}) || server.Readiness.Get != (get{"/readyz", "https", "HTTPS"}) {
		t.Errorf("the probes are %v and %v", server.Liveness, server.Readiness)
	}
	mounted := map[string]volume{}
	for i, m := range server.Mounts {
		if v := pod.Volumes[i]; v.Name == m.Name {
			mounted[m.Path] = v
		}
	}
	// The URL of the store is in the same Secret, and no file.
	if v := mounted["/etc/dibs"].Secret; v.Name != "dibs" || len(v.Items) != 1 || v.Items[0].Path != "tokens" {
		t.Errorf("the tokens are %v", v)
	}
	if v := mounted["/etc/dibs-tls"].Secret; v.Name != "dibs-tls" {
		t.Errorf("the certificate is %v", v)
	}
	if takes := server.Lifecycle.PreStop.Sleep.Seconds + int64(drainIn(t, server.Args)/time.Second); takes == 0 || pod.Grace <= takes {
		t.Errorf("the server may take %d s, and is killed after %d s", takes, pod.Grace)
	}
	text := readDeploy(t, "kubernetes-serve.yaml")
	for _, wanted := range []string{"--tokens=/etc/dibs/tokens", "--tls-cert=/etc/dibs-tls/tls.crt"} {
		if !slices.Contains(server.Args, wanted) || !makesTokens.MatchString(text) {
			t.Errorf("the arguments are %q, want %s", server.Args, wanted)
		}
	}
	(&deployed{args: server.Args, store: newBench(t).store, text: text}).checkServes(t)
}

// TestKubernetesSidecar: the server beside an application serves on a socket that both mount, in a
// group that both are in.
func TestKubernetesSidecar(t *testing.T) {
	pod := readManifest(t, "kubernetes-serve-sidecar.yaml")["Deployment"].Spec.Template.Spec
	server, application := pod.Inits[0], pod.Containers[0]
	server.checkRights(t)
	if server.Restart != "Always" || pod.Volumes[0].EmptyDir == nil {
		t.Errorf("it restarts %q, and its folder is %v", server.Restart, pod.Volumes)
	}
	for _, c := range []container{server, application} {
		if m := c.Mounts[0]; m.Name != pod.Volumes[0].Name || m.Path != "/run/dibs" {
			t.Errorf("%s mounts %v", c.Name, m)
		}
	}
	if want := []string{installed, "healthcheck", "unix:/run/dibs/dibs.sock"}; !slices.Equal(server.Startup.Exec.Command, want) {
		t.Errorf("the probe runs %q", server.Startup.Exec.Command)
	}
	if drain := drainIn(t, server.Args); drain == 0 || drain >= 30*time.Second {
		t.Errorf("it may take %v of 30 s", drain)
	}
	t.Run("serves", func(t *testing.T) {
		(&deployed{args: server.Args, store: newBench(t).store}).checkServes(t)
	})
	checkGroup(t, server.Args, pod.Security.Group)
}

// checkGroup starts the server as the user of the image, with an emptyDir as Kubernetes makes it:
// another user in the group can use the socket, and one outside cannot.
func checkGroup(t *testing.T, args []string, group int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Log("only root can start a server as another user")
		return
	}
	dir, err := os.MkdirTemp("", "dibs")
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	testkit.Must(t, os.Chown(dir, 0, group))
	testkit.Must(t, os.Chmod(dir, 0o777|fs.ModeSetgid))
	b := newBench(t)
	b.store = "memory:" // because the folder of a file is root's
	as := func(user, group int, args ...string) *program {
		p := b.command(args...)
		p.Path, p.Dir = openBinary(t), "/"
		p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user), Groups: []uint32{uint32(group)}}}
		return p.begin(t)
	}
	as(65532, group, strings.Split(strings.ReplaceAll(strings.Join(args, "\n"), "/run/dibs", dir), "\n")...).awaitListening(t)
	check := []string{"healthcheck", "unix:" + dir + "/dibs.sock"}
	if code := as(1000, group, check...).code(t); code != 0 {
		t.Errorf("for an application in the group the check ends with %d", code)
	}
	if code := as(1000, 1000, check...).code(t); code != 1 {
		t.Errorf("for an application outside of the group the check ends with %d", code)
	}
}

// openBinary returns a copy of the program that every user can start.
func openBinary(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dibs")
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	testkit.Must(t, os.Chmod(dir, 0o755))
	text, err := os.ReadFile(binary)
	testkit.Must(t, err)
	path := filepath.Join(dir, "dibs")
	testkit.Must(t, os.WriteFile(path, text, 0o755))
	return path
}

// checkKubectl lets kubectl change the Deployment: it drops each field that it does not know.
func checkKubectl(t *testing.T, text string) {
	t.Helper()
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Logf("kubectl did not check the Deployment: %v", err)
		return
	}
	file := filepath.Join(t.TempDir(), "deployment.yaml")
	testkit.Must(t, os.WriteFile(file, []byte(text), 0o644))
	changed, err := exec.Command(kubectl, "set", "env", "--local", "--filename", file, "--output", "yaml", "NEW=value").Output()
	if err != nil {
		t.Fatalf("kubectl: %v", err)
	}
	var ours, theirs any
	testkit.Must(t, yaml.Unmarshal([]byte(text), &ours))
	testkit.Must(t, yaml.Unmarshal(changed, &theirs))
	checkKept(t, "", ours, theirs)
}

// checkKept checks that all fields of ours are among theirs.
func checkKept(t *testing.T, path string, ours, theirs any) {
	t.Helper()
	switch ours := ours.(type) {
	case map[string]any:
		fields, _ := theirs.(map[string]any)
		for name, value := range ours {
			if fields[name] == nil {
				t.Errorf("kubectl does not know %s.%s", path, name)
				continue
			}
			checkKept(t, path+"."+name, value, fields[name])
		}
	case []any:
		list, _ := theirs.([]any)
		for i, value := range ours {
			if i >= len(list) {
				t.Errorf("kubectl does not know %s[%d]", path, i)
				continue
			}
			checkKept(t, path, value, list[i])
		}
	}
}
