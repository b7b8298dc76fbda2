//go:build unix

package command_test

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// installed is where the files of deploy/ have the program.
const installed = "/usr/local/bin/dibs"

// TestDockerfile: the commands of the Dockerfile build a static program here, too, and the
// image has it, for a user without rights, under the Go version of go.mod.
func TestDockerfile(t *testing.T) {
	top, out := filepath.Join(deploy, ".."), t.TempDir()
	made := func(path string) string { return strings.Replace(path, "/out/", out+"/", 1) }
	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	must(t, err)
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(mod))[1]
	image := map[string]string{} // where a copy comes from
	last := map[string]string{}  // of each other instruction, in the last stage
	for _, m := range regexp.MustCompile(`(?m)^([A-Z]+) (.*)$`).FindAllStringSubmatch(readDeploy(t, "Dockerfile"), -1) {
		switch name, rest := m[1], m[2]; name {
		case "FROM":
			clear(last)
			last[name] = rest
			if from, ok := strings.CutPrefix(rest, "golang:"); ok && from != version+" AS build" {
				t.Errorf("FROM %s; go.mod says %s", rest, version)
			}
		case "RUN":
			cmd := exec.Command("sh", "-c", made(rest))
			cmd.Dir = top
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", rest, err, said)
			}
		case "COPY":
			words := strings.Fields(rest)
			from, to := words[len(words)-2], words[len(words)-1]
			if words[0] == "--from=build" {
				image[to] = from
			}
			if _, err := os.Stat(made(from)); strings.HasPrefix(from, "/out/") && err != nil {
				t.Error(err)
			}
		case "WORKDIR", "USER", "ENTRYPOINT":
			last[name] = rest
		default:
			t.Errorf("this test does not know %s", name)
		}
	}
	var entry []string
	must(t, json.Unmarshal([]byte(last["ENTRYPOINT"]), &entry))
	if last["FROM"] != "scratch" || last["USER"] != "65532:65532" || len(entry) != 1 || entry[0] != installed || image[last["WORKDIR"]] == "" {
		t.Errorf("the image is %q with %q", last, image)
	}
	program := made(image[entry[0]])
	if said, err := exec.Command(program, "version").CombinedOutput(); err != nil || !strings.HasPrefix(string(said), "dibs ") {
		t.Errorf("its program says %q, %v", said, err)
	}
	if runtime.GOOS != "linux" {
		return // what was built is not what the image would have
	}
	f, err := elf.Open(program)
	must(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("its program is not static")
		}
	}
}
