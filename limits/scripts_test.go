package limits_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestScriptsUseWhatIsPermitted checks each Redis command that a script uses. The dispatcher must try the command when it starts, and the
// Redis user in deploy/ must have the permission to run it.
func TestScriptsUseWhatIsPermitted(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		content, err := os.ReadFile(path)
		must.Succeed(t, err)
		return string(content)
	}
	const root = ".."
	needed, users := read(filepath.Join(root, "internal", "redisconn", "lua", "needed.lua")), read(filepath.Join(root, "deploy", "redis", "users.acl"))
	var scripts []string
	for _, folder := range []string{"limits", "slots"} {
		all, err := filepath.Glob(filepath.Join(root, folder, "lua", "*.lua"))
		must.Succeed(t, err)
		scripts = append(scripts, all...)
	}
	if len(scripts) < 20 {
		t.Fatalf("scripts: %v", scripts)
	}
	command := regexp.MustCompile(`'([A-Z]{3,})'[,)]| and '([A-Z]{3,})' or '([A-Z]{3,})'`)
	for _, script := range scripts {
		for _, found := range command.FindAllStringSubmatch(read(script), -1) {
			for _, name := range found[1:] {
				if name == "" || strings.Contains("WITHSCORES LIMIT BEFORE", name) {
					continue
				}
				if !strings.Contains(needed, "{ '"+name+"'") || !strings.Contains(users, " +"+strings.ToLower(name)) {
					t.Errorf("%s uses %s, which is not permitted", script, name)
				}
			}
		}
	}
}
