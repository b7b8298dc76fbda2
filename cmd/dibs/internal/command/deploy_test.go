//go:build unix

package command_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/internal/testkit"
)

const deploy = "../../../../deploy"

// readDeploy returns a file of deploy/.
func readDeploy(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy, name))
	testkit.Must(t, err)
	return string(text)
}

// deployed is a proxy as a file of deploy/ starts it.
type deployed struct {
	args     []string
	config   string // the text of /etc/dibs/proxy.yaml, if there is one
	upstream string // its URL, as the file names it
	store    string
}

// checkServes starts the proxy with addresses of this machine, sends a request twice, and
// ends the proxy: the request ran once.
func (d *deployed) checkServes(t *testing.T) {
	t.Helper()
	origin := counting(t)
	b := newBench(t)
	b.store = d.store
	listen, admin := servertest.Addr(t), servertest.Addr(t)
	here := strings.NewReplacer("0.0.0.0:8080", listen, "0.0.0.0:9090", admin, "127.0.0.1:9090", admin, d.upstream, origin.URL, "/etc/dibs/proxy.yaml", b.path("proxy.yaml"))
	b.write(t, "proxy.yaml", here.Replace(d.config))
	p := b.start(t, strings.Split(here.Replace(strings.Join(d.args, "\n")), "\n")...)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		waitFor(t, p, "http://"+admin+path)
	}
	sendTwice(t, "http://"+listen)
	testkit.Must(t, p.Process.Signal(syscall.SIGTERM))
	if code := p.code(t); code != 0 {
		t.Errorf("it ends with %d", code)
	}
}

// counting returns an origin that counts its runs.
func counting(t *testing.T) *httptest.Server {
	t.Helper()
	var runs atomic.Int64
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n < 1<<20 {
			http.Error(w, fmt.Sprintf("the body has %d bytes, %v", n, err), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "run %d", runs.Add(1))
	}))
	t.Cleanup(origin.Close)
	return origin
}

// sendTwice sends a request that no memory keeps, 2 MB, and its retry: it ran once.
func sendTwice(t *testing.T, proxy string) {
	t.Helper()
	for range 2 {
		request, err := http.NewRequestWithContext(t.Context(), "POST", proxy+"/v1/charges/17", strings.NewReader(strings.Repeat("amount=7&", 2<<20/9)))
		testkit.Must(t, err)
		request.Header.Set("Idempotency-Key", `"order-17"`)
		response, err := http.DefaultClient.Do(request)
		testkit.Must(t, err)
		text, err := io.ReadAll(response.Body)
		testkit.Must(t, err)
		testkit.Must(t, response.Body.Close())
		if response.StatusCode != 200 || string(text) != "run 1" {
			t.Errorf("the answer is %s %q", response.Status, text)
		}
	}
}

// waitFor waits until the URL answers 200.
func waitFor(t *testing.T, p *program, url string) {
	t.Helper()
	testkit.Eventually(t, url, func() bool {
		select {
		case <-p.done:
			t.Fatalf("the proxy ended: %s", p.stderr.String())
		default:
		}
		response, err := http.Get(url)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == 200
	})
}

// drainOf returns the field drain of a configuration file.
func drainOf(t *testing.T, config string) time.Duration {
	t.Helper()
	var fields struct{ Drain time.Duration }
	testkit.Must(t, yaml.Unmarshal([]byte(config), &fields))
	return fields.Drain
}

// TestSystemdUnit: the unit starts a proxy that serves, and systemd lets it finish.
func TestSystemdUnit(t *testing.T) {
	unit, config := readDeploy(t, "dibs-proxy.service"), readDeploy(t, "proxy.yaml")
	fields := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)=(.*)$`).FindAllStringSubmatch(unit, -1) {
		fields[m[1]] = m[2]
	}
	stop, err := time.ParseDuration(fields["TimeoutStopSec"] + "s")
	if drain := drainOf(t, config); err != nil || drain == 0 || stop <= drain {
		t.Errorf("systemd kills it after %v, %v; it may take %v", stop, err, drain)
	}
	args := strings.Fields(fields["ExecStart"])
	if args[0] != installed {
		t.Errorf("it starts %s, want %s", args[0], installed)
	}
	if reload := fields["ExecReload"]; reload != "/bin/kill -HUP $MAINPID" {
		t.Errorf("it reloads by %q", reload)
	}
	t.Run("serves", func(t *testing.T) {
		(&deployed{args: args[1:], config: config, upstream: "http://127.0.0.1:3000", store: newBench(t).store}).checkServes(t)
	})
	verifier, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Logf("systemd did not verify the unit: %v", err)
		return
	}
	here := filepath.Join(t.TempDir(), "dibs-proxy.service")
	testkit.Must(t, os.WriteFile(here, []byte(strings.ReplaceAll(unit, installed, binary)), 0o644))
	if said, err := exec.Command(verifier, "verify", "--man=no", here).CombinedOutput(); err != nil || strings.Contains(string(said), here) {
		t.Errorf("systemd-analyze: %v\n%s", err, said)
	}
}

// compose is what compose.yaml may have. A field that is not here is an error.
type compose struct {
	Services map[string]struct {
		Image       string
		Build       struct{ Context, Dockerfile string }
		Command     []string
		Environment map[string]string
		Ports       []string
		DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
		StopGrace   time.Duration                         `yaml:"stop_grace_period"`
		ReadOnly    bool                                  `yaml:"read_only"`
		CapDrop     []string                              `yaml:"cap_drop"`
		SecurityOpt []string                              `yaml:"security_opt"`
		Tmpfs       []string
		Profiles    []string
		Volumes     []string
		Healthcheck struct {
			Test     []string
			Interval time.Duration
		}
		Restart string
	}
	Volumes map[string]struct{}
}

// checkMonitoring: the profile has Prometheus with the alerts, which asks the proxy, and Grafana
// with the dashboard, which asks Prometheus.
func checkMonitoring(t *testing.T, file *compose) {
	t.Helper()
	mounted := map[string]string{} // by the path in the container
	for _, name := range []string{"prometheus", "grafana"} {
		s := file.Services[name]
		if !slices.Equal(s.Profiles, []string{"monitoring"}) {
			t.Errorf("%s is in the profiles %q", name, s.Profiles)
		}
		for _, volume := range s.Volumes {
			words := strings.Split(volume, ":")
			mounted[words[1]] = readDeploy(t, words[0])
		}
	}
	var prometheus struct {
		Global  map[string]time.Duration
		Rules   []string `yaml:"rule_files"`
		Scrapes []struct {
			Job     string                       `yaml:"job_name"`
			Targets []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	testkit.Must(t, yaml.UnmarshalWithOptions([]byte(mounted["/etc/prometheus/prometheus.yml"]), &prometheus, yaml.Strict()))
	if prometheus.Scrapes[0].Targets[0].Targets[0] != "proxy:9090" || mounted["/etc/prometheus/"+prometheus.Rules[0]] == "" {
		t.Errorf("Prometheus is %+v", prometheus)
	}
	var sources struct {
		Version int `yaml:"apiVersion"`
		Sources []struct {
			Name, Type, URL string
			Default         bool `yaml:"isDefault"`
		} `yaml:"datasources"`
	}
	testkit.Must(t, yaml.UnmarshalWithOptions([]byte(mounted["/etc/grafana/provisioning/datasources/dibs.yaml"]), &sources, yaml.Strict()))
	if s := sources.Sources[0]; s.Type != "prometheus" || s.URL != "http://prometheus:9090" {
		t.Errorf("Grafana asks %+v", s)
	}
	var boards struct {
		Version   int `yaml:"apiVersion"`
		Providers []struct {
			Name, Type string
			Options    struct{ Path string }
		}
	}
	testkit.Must(t, yaml.UnmarshalWithOptions([]byte(mounted["/etc/grafana/provisioning/dashboards/dibs.yaml"]), &boards, yaml.Strict()))
	if mounted[boards.Providers[0].Options.Path+"/dibs.json"] == "" {
		t.Errorf("Grafana has no dashboard in %+v", boards.Providers)
	}
}

// TestComposeFile: the proxy of the file serves over a Redis server with the options of the
// file, in which dibs doctor finds no fault.
func TestComposeFile(t *testing.T) {
	var file compose
	testkit.Must(t, yaml.UnmarshalWithOptions([]byte(readDeploy(t, "compose.yaml")), &file, yaml.Strict()))
	proxy, redis := file.Services["proxy"], file.Services["redis"]
	for _, path := range []string{proxy.Build.Dockerfile, "go.work"} { // from the top
		if _, err := os.Stat(filepath.Join(deploy, proxy.Build.Context, path)); err != nil {
			t.Error(err)
		}
	}
	for name := range proxy.DependsOn {
		if file.Services[name].Healthcheck.Test == nil {
			t.Errorf("the proxy waits for the health of %s, which nothing checks", name)
		}
	}
	if !proxy.ReadOnly || !slices.Contains(proxy.Tmpfs, "/tmp") {
		t.Errorf("read-only %v, with %v for long bodies", proxy.ReadOnly, proxy.Tmpfs)
	}
	if want := []string{"CMD", installed, "healthcheck", "--admin", "127.0.0.1:9090"}; !slices.Equal(proxy.Healthcheck.Test, want) {
		t.Errorf("its health is checked by %q", proxy.Healthcheck.Test)
	}
	checkMonitoring(t, &file)
	var directives []string
	if redis.Command[0] != "redis-server" {
		t.Fatalf("Redis is started by %q", redis.Command)
	}
	for i := 1; i+1 < len(redis.Command); i += 2 {
		directives = append(directives, strings.TrimPrefix(redis.Command[i], "--")+" "+redis.Command[i+1])
	}
	server := servertest.Redis(t, &servertest.RedisOptions{Directives: directives})
	if proxy.Environment["DIBS_STORE"] != "redis://redis:6379" {
		t.Errorf("the proxy's environment is %q", proxy.Environment)
	}
	d := &deployed{args: proxy.Command, upstream: "http://application:3000", store: server.URL()}
	d.checkServes(t)
	drain, err := time.ParseDuration(proxy.Command[len(proxy.Command)-1])
	if err != nil || proxy.StopGrace <= drain {
		t.Errorf("the proxy is killed after %v; it may take %v, %v", proxy.StopGrace, drain, err)
	}
	if said, err := exec.Command(binary, "doctor", "--store", server.URL()).CombinedOutput(); err != nil || !strings.HasPrefix(string(said), "nothing found") {
		t.Errorf("dibs doctor: %v\n%s", err, said)
	}
}
