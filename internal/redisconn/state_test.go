package redisconn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func keysOfAllNodes() (keys []string) {
	for i := range 30 {
		keys = append(keys, fmt.Sprint("key", i))
	}
	return keys
}

// TestServedIsWhatTheClusterServes checks CountServedKeys for a Cluster that lacks a master. With cluster-require-full-coverage, the default,
// such a Cluster serves no key.
func TestServedIsWhatTheClusterServes(t *testing.T) {
	t.Parallel()
	for coverage, partly := range map[string]bool{"yes": false, "no": true} {
		t.Run(coverage, func(t *testing.T) {
			t.Parallel()
			cluster := servers.StartRedisNodes(t, false, "--cluster-require-full-coverage", coverage)
			c := openConn(t, cluster.Nodes[0].URL())
			if n, err := c.CountServedKeys(t.Context(), keysOfAllNodes()); n != 30 || err != nil {
				t.Errorf("%d of 30 served, %v", n, err)
			}
			cluster.Nodes[2].Kill()
			await.True(t, "Cluster that knows of the loss", func() bool {
				n, err := c.CountServedKeys(t.Context(), keysOfAllNodes())
				return err != nil && (n > 10 && n < 30) == partly && (n == 0) == !partly
			})
		})
	}
}

func TestServedByOneServer(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	c := openConn(t, server.URL())
	if n, err := c.CountServedKeys(t.Context(), keysOfAllNodes()); n != 30 || err != nil {
		t.Errorf("%d of 30 served, %v", n, err)
	}
	server.Stop()
	if n, err := c.CountServedKeys(t.Context(), keysOfAllNodes()); n != 0 || err == nil {
		t.Errorf("%d of 30 served by a server that is down, %v", n, err)
	}
}

func TestExamineSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args    []string
		user    string
		trouble []string
	}{
		"nothing":             {},
		"memory without end":  {args: []string{"--maxmemory-policy", "allkeys-lru"}},
		"eviction":            {args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"}, trouble: []string{"volatile-lru"}},
		"a forbidden command": {args: strings.Fields("--user poor on >p ~* &* +@all -zrank -hgetall"), user: "poor:p@", trouble: []string{"HGETALL, ZRANK"}},
		"a renamed command":   {args: []string{"--rename-command", "ZPOPMIN", "ELSE"}, trouble: []string{"ZPOPMIN"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := openConn(t, "redis://"+test.user+servers.StartRedis(t, test.args...).Addr)
			notes, err := c.Examine(t.Context())
			if err != nil || notes.Kind != "one server" || !strings.HasPrefix(notes.Version, "7.") || len(notes.Trouble) != len(test.trouble) {
				t.Fatalf("%+v, %v; want trouble %q", notes, err, test.trouble)
			}
			for i, want := range test.trouble {
				if !strings.Contains(notes.Trouble[i].Text, want) {
					t.Errorf("%q, want %q", notes.Trouble[i].Text, want)
				}
			}
		})
	}
}

// TestExamineFails checks that Examine returns an error with the reason if no server can be used.
func TestExamineFails(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t, "--requirepass", "right")
	for url, want := range map[string]string{
		"redis://:wrong@" + server.Addr:         "WRONGPASS",
		server.URL():                            "NOAUTH",
		"redis://:right@" + servers.FreeAddr(t): "refused",
	} {
		if _, err := openConn(t, url).Examine(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestExamineNotesMastersThatFail checks Examine if some masters do not work: it reports each of them, always with
// the same text. If no master works, it returns an error.
func TestExamineNotesMastersThatFail(t *testing.T) {
	t.Parallel()
	for coverage, partly := range map[string]bool{"yes": false, "no": true} {
		t.Run(coverage, func(t *testing.T) {
			t.Parallel()
			cluster := servers.StartRedisNodes(t, false, "--cluster-require-full-coverage", coverage)
			c := openConn(t, cluster.Nodes[0].URL())
			if notes, err := c.Examine(t.Context()); err != nil || len(notes.Trouble) != 0 {
				t.Fatalf("%+v, %v", notes, err)
			}
			last := slices.MaxFunc(cluster.Nodes, func(a, b *servers.RedisServer) int { return strings.Compare(a.Addr, b.Addr) })
			last.Kill() // the text must name all failed nodes, not only this one
			await.True(t, "note of the loss", func() bool {
				notes, err := c.Examine(t.Context())
				if partly {
					return err == nil && notes.Kind == "a Cluster of 3 masters" && len(notes.Trouble) == 1 && strings.Contains(notes.Trouble[0].Text, "is not usable: ")
				}
				return err != nil && strings.Contains(err.Error(), "cluster_state is fail")
			})
		})
	}
}

// The program logs the result of Examine again whenever it differs from the previous result. So the same state must
// always give the same text.
func TestExamineSaysTheSameOfTheSame(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisNodes(t, false, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru", "--rename-command", "ZPOPMIN", "ELSE")
	c := openConn(t, cluster.Nodes[0].URL())
	first, err := c.Examine(t.Context())
	if err != nil || len(first.Trouble) != 6 {
		t.Fatalf("%+v, %v; want two troubles of each master", first, err)
	}
	for range 20 {
		if notes, err := c.Examine(t.Context()); err != nil || !slices.Equal(notes.Trouble, first.Trouble) {
			t.Fatalf("%q, %v; before %q", notes.Trouble, err, first.Trouble)
		}
	}
	server := servers.StartRedis(t)
	silent := openConn(t, server.URL())
	server.Pause()
	var said []string
	for range 2 {
		_, err := silent.Examine(t.Context())
		said = append(said, fmt.Sprint(err))
	}
	server.Resume()
	if said[0] != said[1] || !strings.Contains(said[0], "timeout") {
		t.Errorf("%q", said)
	}
}

func TestExamineCluster(t *testing.T) {
	t.Parallel()
	notes, err := openConn(t, servers.StartRedisNodes(t, false).Nodes[1].URL()).Examine(t.Context())
	if err != nil || notes.Kind != "a Cluster of 3 masters" || len(notes.Trouble) != 0 {
		t.Errorf("%+v, %v", notes, err)
	}
	notes, err = openConn(t, servers.StartSentinels(t, "").URL()).Examine(t.Context())
	if err != nil || notes.Kind != "a master behind Sentinel" || len(notes.Trouble) != 0 {
		t.Errorf("%+v, %v", notes, err)
	}
}

// TestUsersHaveTheLeastRights checks that the Redis user in deploy/ has no right that the program does not need. A
// test of internal/app checks that its rights are sufficient.
func TestUsersHaveTheLeastRights(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join("..", "..", "deploy", "redis", "users.acl"))
	must.Succeed(t, err)
	needed, err := os.ReadFile(filepath.Join("lua", "needed.lua"))
	must.Succeed(t, err)
	outside := []string{"ping", "info", "cluster|slots", "cluster|info", "asking", "select", "eval", "evalsha", "publish", "subscribe", "unsubscribe"}
	for line := range strings.Lines(string(content)) {
		if !strings.HasPrefix(line, "user dispatcher ") {
			continue
		}
		for right := range strings.FieldsSeq(line) {
			command, is := strings.CutPrefix(right, "+")
			if is && !slices.Contains(outside, command) && !strings.Contains(string(needed), "{ '"+strings.ToUpper(command)+"'") {
				t.Errorf("%s is permitted, and not needed", command)
			}
		}
	}
}
