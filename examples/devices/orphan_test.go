package devices_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestAKilledProgramLeavesBeforeItReportsThat checks a program that is killed alone while its task runs, and started again. When it reports
// that the task has failed, no process of the first start may still be inside the external system: the failure frees the slot.
func TestAKilledProgramLeavesBeforeItReportsThat(t *testing.T) {
	t.Parallel()
	i := slices.IndexFunc(programs(), func(p deviceProgram) bool { return p.name == "shell-http" }) // the others have one process
	command := programs()[i].install(t)
	system, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer system.Close()
	failures := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var report struct {
			ID      string
			Results []struct{ Status string }
		}
		_ = json.NewDecoder(r.Body).Decode(&report)
		reply := `{"re":%q,"reason":"none","report_after_ms":100}`
		if strings.HasPrefix(report.ID, "1-") {
			reply = `{"re":%q,"reason":"granted","task":{"id":1,"token":7,"lease_ms":60000,"payload":{"system":"` + system.Addr().String() + `","seconds":30}},"report_after_ms":9000}`
		}
		if len(report.Results) > 0 && report.Results[0].Status == "failed" {
			failures <- struct{}{}
		}
		_, _ = fmt.Fprintf(w, reply, report.ID)
	}))
	defer server.Close()
	token := filepath.Join(t.TempDir(), "token")
	must.Succeed(t, os.WriteFile(token, []byte("secret"), 0o600))
	args := append(slices.Clone(command[1:]), "--server", server.URL, "--device", "d", "--token-file", token, "--journal", filepath.Join(t.TempDir(), "journal"))
	start := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), command[0], args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		must.Succeed(t, cmd.Start())
		return cmd
	}
	first := start()
	inside, err := system.Accept()
	must.Succeed(t, err)
	_ = first.Process.Kill()
	_ = first.Wait()
	second := start()
	defer func() {
		_ = syscall.Kill(-first.Process.Pid, syscall.SIGKILL)
		_ = syscall.Kill(-second.Process.Pid, syscall.SIGKILL)
		_ = second.Wait()
	}()
	await.Receive(t, failures, "the failure was not reported")
	_ = inside.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // a closed connection answers at once
	for buffer := make([]byte, 100); ; {
		if _, err := inside.Read(buffer); err != nil {
			if os.IsTimeout(err) {
				t.Error("the failure was reported while the task of the killed program was inside")
			}
			return
		}
	}
}
