//go:build unix

package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

const deploy = "../../../../deploy"

// readDeploy returns a file of deploy/.
func readDeploy(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy, name))
	testkit.Must(t, err)
	return string(text)
}

// drainIn returns the flag --drain of the arguments, or 0.
func drainIn(t *testing.T, args []string) time.Duration {
	t.Helper()
	m := regexp.MustCompile(`--drain[ =](\w+)`).FindStringSubmatch(strings.Join(args, " "))
	if m == nil {
		return 0
	}
	drain, err := time.ParseDuration(m[1])
	testkit.Must(t, err)
	return drain
}

// drainOf returns the field drain of a configuration file.
func drainOf(t *testing.T, config string) time.Duration {
	t.Helper()
	var fields struct{ Drain time.Duration }
	testkit.Must(t, yaml.Unmarshal([]byte(config), &fields))
	return fields.Drain
}

// A unit is a file of systemd: its fields, the last of each name.
type unit map[string]string

func parseUnit(text string) unit {
	fields := unit{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)=(.*)$`).FindAllStringSubmatch(text, -1) {
		fields[m[1]] = m[2]
	}
	return fields
}

// TestSystemdUnits: each unit starts a proxy or a server that serves, and systemd lets it finish.
// Both have the same rights.
func TestSystemdUnits(t *testing.T) {
	config := readDeploy(t, "proxy.yaml")
	proxy := parseUnit(readDeploy(t, "dibs-proxy.service"))
	serve := parseUnit(readDeploy(t, "dibs-serve.service"))
	for name, u := range map[string]unit{"dibs-proxy": proxy, "dibs-serve": serve} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(u["ExecStart"])
			if args[0] != installed {
				t.Errorf("it starts %s, want %s", args[0], installed)
			}
			if reload := u["ExecReload"]; reload != "/bin/kill -HUP $MAINPID" {
				t.Errorf("it reloads by %q", reload)
			}
			drain := drainIn(t, args)
			if drain == 0 {
				drain = drainOf(t, config)
			}
			stop, err := time.ParseDuration(u["TimeoutStopSec"] + "s")
			if err != nil || drain == 0 || stop <= drain {
				t.Errorf("systemd kills it after %v, %v; it may take %v", stop, err, drain)
			}
			(&deployed{args: args[1:], config: config, upstream: "http://127.0.0.1:3000", store: newBench(t).store}).checkServes(t)
			verifyUnit(t, name+".service")
		})
	}
	own := []string{"Description", "ExecStart", "Environment", "StateDirectory", "WorkingDirectory", "Group", "RuntimeDirectory", "RuntimeDirectoryMode"}
	for _, u := range []unit{proxy, serve} {
		for name := range u {
			if proxy[name] != serve[name] && !slices.Contains(own, name) {
				t.Errorf("%s is %q of the proxy and %q of the server", name, proxy[name], serve[name])
			}
		}
	}
	if serve["RuntimeDirectory"] != "dibs" || serve["RuntimeDirectoryMode"] != "0750" || serve["Group"] != "dibs" || !strings.Contains(serve["ExecStart"], "unix:/run/dibs/dibs.sock --socket-mode 0660") {
		t.Errorf("its group cannot use the socket: %q", serve)
	}
}

// TestSystemdOverride: the page's change of the unit makes it serve other hosts, with tokens.
func TestSystemdOverride(t *testing.T) {
	starts := regexp.MustCompile("(?s)\n```ini\n(.*?)```").FindStringSubmatch(readDeploy(t, "../docs/reference/serve.md"))
	if starts == nil {
		t.Fatal("docs/reference/serve.md has no ini")
	}
	args := strings.Fields(parseUnit(starts[1])["ExecStart"])
	if args[0] != installed || !slices.Contains(args, "--tokens") || !slices.Contains(args, "--tls-cert") {
		t.Errorf("it starts %q", args)
	}
	(&deployed{args: args[1:], store: newBench(t).store}).checkServes(t)
}

// verifyUnit lets systemd read the unit, if it is installed.
func verifyUnit(t *testing.T, name string) {
	t.Helper()
	verifier, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Logf("systemd did not verify the unit: %v", err)
		return
	}
	here := filepath.Join(t.TempDir(), name)
	testkit.Must(t, os.WriteFile(here, []byte(strings.ReplaceAll(readDeploy(t, name), installed, binary)), 0o644))
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
		Secrets     []string
		Profiles    []string
		Volumes     []string
		Healthcheck struct {
			Test     []string
			Interval time.Duration
		}
		Restart string
	}
	Secrets map[string]struct{ File string }
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

// TestComposeFile: the proxy and the server of the file serve over a Redis server with the options
// of the file, in which dibs doctor finds no fault.
func TestComposeFile(t *testing.T) {
	var file compose
	text := readDeploy(t, "compose.yaml")
	testkit.Must(t, yaml.UnmarshalWithOptions([]byte(text), &file, yaml.Strict()))
	checkMonitoring(t, &file)
	redis := file.Services["redis"]
	var directives []string
	if redis.Command[0] != "redis-server" {
		t.Fatalf("Redis is started by %q", redis.Command)
	}
	for i := 1; i+1 < len(redis.Command); i += 2 {
		directives = append(directives, strings.TrimPrefix(redis.Command[i], "--")+" "+redis.Command[i+1])
	}
	server := servertest.Redis(t, &servertest.RedisOptions{Directives: directives})
	for name, admin := range map[string]string{"proxy": "127.0.0.1:9090", "serve": "127.0.0.1:7331"} {
		t.Run(name, func(t *testing.T) {
			s := file.Services[name]
			for _, path := range []string{s.Build.Dockerfile, "go.work"} { // from the top
				if _, err := os.Stat(filepath.Join(deploy, s.Build.Context, path)); err != nil {
					t.Error(err)
				}
			}
			for other := range s.DependsOn {
				if file.Services[other].Healthcheck.Test == nil {
					t.Errorf("it waits for the health of %s, which nothing checks", other)
				}
			}
			if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
				t.Errorf("read-only %v, without the rights %q", s.ReadOnly, s.CapDrop)
			}
			if want := []string{"CMD", installed, "healthcheck", admin}; !slices.Equal(s.Healthcheck.Test, want) {
				t.Errorf("its health is checked by %q", s.Healthcheck.Test)
			}
			if s.Environment["DIBS_STORE"] != "redis://redis:6379" {
				t.Errorf("its environment is %q", s.Environment)
			}
			if drain := drainIn(t, s.Command); drain == 0 || s.StopGrace <= drain {
				t.Errorf("it is killed after %v; it may take %v", s.StopGrace, drain)
			}
			(&deployed{args: s.Command, upstream: "http://application:3000", store: server.URL(), text: text}).checkServes(t)
		})
	}
	if tmpfs := file.Services["proxy"].Tmpfs; !slices.Contains(tmpfs, "/tmp") {
		t.Errorf("the proxy has %q for long bodies", tmpfs)
	}
	serve := file.Services["serve"]
	if !slices.Equal(serve.Secrets, []string{"tokens"}) || file.Secrets["tokens"].File != "tokens" || !slices.Contains(serve.Command, "/run/secrets/tokens") || !makesTokens.MatchString(text) {
		t.Errorf("its tokens are %q of %v", serve.Secrets, file.Secrets)
	}
	// Without TLS no other host may reach it.
	if !slices.Equal(serve.Ports, []string{"127.0.0.1:7331:7331"}) {
		t.Errorf("it listens on %q", serve.Ports)
	}
	if said, err := exec.Command(binary, "doctor", "--store", server.URL()).CombinedOutput(); err != nil || !strings.HasPrefix(string(said), "nothing found") {
		t.Errorf("dibs doctor: %v\n%s", err, said)
	}
}

// TestAlertsLink: each alert links to the section of the docs that says what to do.
func TestAlertsLink(t *testing.T) {
	rules := strings.Split(readDeploy(t, "alerts.yaml"), "- alert: ")[1:]
	if len(rules) == 0 {
		t.Fatal("there is no alert")
	}
	for _, rule := range rules {
		m := regexp.MustCompile(`\n +runbook_url: https://github\.com/dibs-go/dibs/blob/main/docs/(\S+)(#\S+)\n`).FindStringSubmatch(rule)
		if m == nil {
			t.Errorf("an alert has no link: %s", rule)
		} else if !slices.Contains(anchors(readPage(t, m[1])), m[2]) {
			t.Errorf("%s has no heading for %s", m[1], m[2])
		}
	}
}

// TestAFailedRunIsOver: the alert about a failed command ends when the command has succeeded after that, on any
// host, because the host that failed may never run it again.
func TestAFailedRunIsOver(t *testing.T) {
	_, rule, _ := strings.Cut(readDeploy(t, "alerts.yaml"), "- alert: DibsRunFailed\n")
	rule, _, _ = strings.Cut(rule, "labels:")
	if want := "dibs_run_end_timestamp_seconds > on (run) group_left () max by (run) (dibs_run_success_timestamp_seconds)"; !strings.Contains(rule, want) {
		t.Errorf("the alert is %s; want %s in it", rule, want)
	}
}
