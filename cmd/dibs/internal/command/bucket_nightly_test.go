//go:build nightly && unix

package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// aws does with curl what the page does with the AWS CLI.
const aws = `#!/bin/sh
ask() { curl -sf -H "x-amz-content-sha256: UNSIGNED-PAYLOAD" --aws-sigv4 aws:amz:us-east-1:s3 --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" "$@"; }
case "$2" in
ls) ask -I "$ENDPOINT/${3#s3://}" >/dev/null ;;
cp) ask -X PUT --data-binary @- "$ENDPOINT/${4#s3://}" ;;
esac
`

// TestOnceAnHourInABucket: the command of the page of S3 makes a report once an hour. A report that
// failed is made again.
func TestOnceAnHourInABucket(t *testing.T) {
	server, dir := servertest.S3(t), t.TempDir()
	page := string(testkit.ReadFile(t, "../../../../stores/casstore/s3/README.md"))
	_, part, _ := strings.Cut(page, "\n## Once an hour\n")
	command := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(part)
	if command == nil {
		t.Fatal("the page has no such command")
	}
	for name, text := range map[string]string{
		"aws":    aws,
		"report": "#!/bin/sh\necho made >> reports\ntest -e works\n",
		"date":   "#!/bin/sh\ncat hour\n",
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
	}
	run := func(hour string) {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "hour"), []byte(hour), 0o600))
		cmd := exec.Command("sh", "-c", strings.ReplaceAll(command[1], "BUCKET", "dibs"))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+filepath.Dir(binary)+":"+os.Getenv("PATH"), "DIBS_STORE="+server.Store(""), "ENDPOINT="+server.URL(),
			"AWS_ACCESS_KEY_ID="+servertest.S3Access, "AWS_SECRET_ACCESS_KEY="+servertest.S3Secret)
		out, err := cmd.CombinedOutput()
		t.Logf("at %s: %v %s", hour, err, out)
	}
	made := func(want int) {
		t.Helper()
		if got := strings.Count(string(testkit.ReadFile(t, filepath.Join(dir, "reports"))), "made"); got != want {
			t.Errorf("%d reports were begun, want %d", got, want)
		}
	}
	run("2026112901") // it fails
	made(1)
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "works"), nil, 0o600))
	run("2026112901")
	made(2)
	run("2026112901")
	made(2)
	run("2026112902")
	made(3)
}
