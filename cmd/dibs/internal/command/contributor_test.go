//go:build unix

package command_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// top is the folder of the clone.
const top = "../../../.."

// A workflow is what the tests look at of a file in .github/workflows.
type workflow struct {
	On   any
	Jobs map[string]struct {
		RunsOn   string `yaml:"runs-on"`
		Defaults any
		Steps    []struct {
			Uses, Run        string
			WorkingDirectory string `yaml:"working-directory"`
		}
		Container string
	}
}

// TestWorkflows: the workflows run what the Makefile and the tree have, with the Go of the modules.
func TestWorkflows(t *testing.T) {
	makefile := string(testkit.ReadFile(t, filepath.Join(top, "Makefile")))
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(testkit.ReadFile(t, filepath.Join(top, "go.mod"))))[1]
	made := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(top, ".github/workflows/*.yml"))
	testkit.Must(t, err)
	for _, file := range files {
		var w workflow
		testkit.Must(t, yaml.Unmarshal(testkit.ReadFile(t, file), &w))
		if w.On == nil || len(w.Jobs) == 0 {
			t.Errorf("%s starts nothing", file)
		}
		for name, job := range w.Jobs {
			if job.Container != "" && !strings.HasPrefix(job.Container, "golang:"+version+"-") {
				t.Errorf("%s: %s runs in %s; the modules need Go %s", file, name, job.Container, version)
			}
			for _, step := range job.Steps {
				if (step.Uses == "") == (step.Run == "") {
					t.Errorf("%s: a step of %s needs either uses or run", file, name)
				}
				dir := filepath.Join(top, step.WorkingDirectory)
				for _, m := range regexp.MustCompile(`(?:^| )(\./\w+)`).FindAllStringSubmatch(step.Run, -1) {
					if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
						t.Errorf("%s: %s: %v", file, name, err)
					}
				}
				if targets, ok := strings.CutPrefix(step.Run, "make "); ok {
					for target := range strings.FieldsSeq(targets) {
						if target == "${{" {
							break // one of the matrix
						}
						made[target] = true
						if !strings.HasPrefix(target, "VERSION=") && !strings.Contains(makefile, "\n"+target+":") {
							t.Errorf("%s: %s: the Makefile has no %s", file, name, target)
						}
					}
				}
			}
		}
	}
	for _, target := range []string{"test", "lint", "release"} {
		if !made[target] {
			t.Errorf("no workflow runs make %s; they run %q", target, slices.Sorted(maps.Keys(made)))
		}
	}
}

// TestDependabot: the modules of go.work that require something are kept up to date.
func TestDependabot(t *testing.T) {
	var bot struct {
		Updates []struct {
			Ecosystem   string `yaml:"package-ecosystem"`
			Directory   string
			Directories []string
		}
	}
	testkit.Must(t, yaml.Unmarshal(testkit.ReadFile(t, filepath.Join(top, ".github/dependabot.yml")), &bot))
	var modules []string
	for _, m := range regexp.MustCompile(`(?m)^\t\.(/.+)$`).FindAllStringSubmatch(string(testkit.ReadFile(t, filepath.Join(top, "go.work"))), -1) {
		modules = append(modules, m[1])
	}
	for _, u := range bot.Updates {
		if u.Ecosystem == "gomod" {
			if got := slices.Sorted(slices.Values(u.Directories)); !slices.Equal(got, slices.Sorted(slices.Values(modules))) {
				t.Errorf("the bot looks at %q; the modules are %q", got, modules)
			}
			return
		}
	}
	t.Error("the bot looks at no module")
}

// TestIssueForms: a form asks for the report of the doctor, and its fields can be told apart.
func TestIssueForms(t *testing.T) {
	forms := 0
	testkit.Must(t, fs.WalkDir(os.DirFS(filepath.Join(top, ".github/ISSUE_TEMPLATE")), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == "config.yml" {
			return err
		}
		forms++
		var form struct {
			Name, Description string
			Body              []struct {
				Type, ID   string
				Attributes map[string]any
			}
		}
		text := testkit.ReadFile(t, filepath.Join(top, ".github/ISSUE_TEMPLATE", name))
		testkit.Must(t, yaml.Unmarshal(text, &form))
		ids := map[string]bool{}
		for _, field := range form.Body {
			if field.Type != "markdown" && (field.ID == "" || ids[field.ID] || field.Attributes["label"] == nil) {
				t.Errorf("%s: a field has no id of its own, or no label: %+v", name, field)
			}
			ids[field.ID] = true
		}
		if form.Name == "" || form.Description == "" || !strings.Contains(string(text), "`dibs doctor --report`") {
			t.Errorf("%s has no name, no description or does not ask for the report", name)
		}
		return nil
	}))
	if forms < 2 {
		t.Errorf("there are %d forms", forms)
	}
	links := regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(testkit.ReadFile(t, filepath.Join(top, ".github/pull_request_template.md"))), -1)
	if len(links) == 0 || links[0][1] != "../docs/design/testing.md" {
		t.Errorf("the template of pull requests links %q, and not docs/design/testing.md", links)
	}
}

// TestComposeOfTests: the container of the tests has the Go of the workflows and the servers, and runs
// what its comment and CONTRIBUTING.md say.
func TestComposeOfTests(t *testing.T) {
	text := string(testkit.ReadFile(t, filepath.Join(top, "compose.test.yaml")))
	var c struct {
		Services map[string]struct {
			Build struct {
				Dockerfile string `yaml:"dockerfile_inline"`
			}
			Command []string
		}
		Volumes map[string]any
	}
	testkit.Must(t, yaml.Unmarshal([]byte(text), &c))
	service := c.Services["test"]
	gate := string(testkit.ReadFile(t, filepath.Join(top, ".github/workflows/gate.yml")))
	image := regexp.MustCompile(`FROM (\S+)`).FindStringSubmatch(service.Build.Dockerfile)
	if len(image) != 2 || !strings.Contains(gate, "container: "+image[1]+"\n") || !strings.Contains(service.Build.Dockerfile, "make need") {
		t.Errorf("it is built by %q; the gate runs in the same image, where make need installed the servers", service.Build.Dockerfile)
	}
	if !slices.Equal(service.Command, []string{"make", "test"}) {
		t.Errorf("it runs %q", service.Command)
	}
	const command = "docker compose --file compose.test.yaml run --rm test"
	if page := string(testkit.ReadFile(t, filepath.Join(top, "CONTRIBUTING.md"))); !strings.Contains(page, command) || !strings.Contains(text, command) {
		t.Errorf("CONTRIBUTING.md and the file do not both say %s", command)
	}
}
