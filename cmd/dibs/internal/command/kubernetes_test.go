//go:build unix

package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/dibs-go/dibs/internal/testkit"
)

// manifest is what a document of kubernetes.yaml may have. A field that is not here is an
// error.
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
				Grace      int64 `yaml:"terminationGracePeriodSeconds"`
				Containers []container
				Volumes    []struct {
					Name      string
					ConfigMap struct{ Name string } `yaml:"configMap"`
					EmptyDir  *struct{}             `yaml:"emptyDir"`
				}
			}
		}
	}
}

type container struct {
	Name, Image string
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
	Get     struct{ Path, Port string } `yaml:"httpGet"`
	Period  int                         `yaml:"periodSeconds"`
	Timeout int                         `yaml:"timeoutSeconds"`
}

// TestKubernetesManifest: the proxy of the pod serves with its ConfigMap, its probes ask
// what the proxy answers, and the application outlives the proxy's drain.
func TestKubernetesManifest(t *testing.T) {
	all := map[string]manifest{}
	texts := map[string]string{}
	for text := range strings.SplitSeq(readDeploy(t, "kubernetes.yaml"), "\n---\n") {
		var m manifest
		testkit.Must(t, yaml.UnmarshalWithOptions([]byte(text), &m, yaml.Strict()))
		all[m.Kind], texts[m.Kind] = m, text
	}
	pod := all["Deployment"].Spec.Template.Spec
	config := all["ConfigMap"].Data["proxy.yaml"]
	application, proxy := pod.Containers[0], pod.Containers[1]
	if v := pod.Volumes[0]; v.ConfigMap.Name != all["ConfigMap"].Metadata.Name || proxy.Mounts[0].Name != v.Name || proxy.Mounts[0].Path != "/etc/dibs" {
		t.Errorf("the configuration is mounted as %v from %v", proxy.Mounts, v)
	}
	if e := proxy.Env[0]; len(proxy.Env) != 1 || e.Name != "DIBS_STORE" || e.ValueFrom.Secret.Key == "" {
		t.Errorf("the environment is %v", proxy.Env)
	}
	ports := map[string]int{}
	for _, p := range proxy.Ports {
		ports[p.Name] = p.Port
	}
	if ports["http"] != 8080 || ports["admin"] != 9090 || all["Service"].Spec.Ports[0].TargetPort != "http" {
		t.Errorf("the ports are %v, the service is %v", ports, all["Service"].Spec.Ports)
	}
	if proxy.Liveness.Get != (struct{ Path, Port string }{"/healthz", "admin"}) || proxy.Readiness.Get != (struct{ Path, Port string }{"/readyz", "admin"}) {
		t.Errorf("the probes are %v and %v", proxy.Liveness, proxy.Readiness)
	}
	if s := proxy.Security; !s.NonRoot || !s.ReadOnly || s.Escalation || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("the proxy's rights are %v", s)
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
	checkKubectl(t, texts["Deployment"])
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
