package redisconn_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

func TestURLGivesExplicitSettings(t *testing.T) {
	t.Parallel()
	type parsed struct {
		Addrs                          []string
		Username, Password, MasterName string
		SentinelUser, SentinelPassword string
		DB                             int
		TLS                            bool
	}
	for raw, want := range map[string]parsed{
		"redis://localhost":                 {Addrs: []string{"localhost:6379"}},
		"redis://h:1/":                      {Addrs: []string{"h:1"}},
		"redis://:p%40ss%2Fw@h:1/3":         {Addrs: []string{"h:1"}, Password: "p@ss/w", DB: 3},
		"redis://u:a@b:c@h":                 {Addrs: []string{"h:6379"}, Username: "u", Password: "a@b:c"},
		"rediss://u:p@[::1]:7":              {Addrs: []string{"[::1]:7"}, Username: "u", Password: "p", TLS: true},
		"redis://a,b:2,10.0.0.3":            {Addrs: []string{"a:6379", "b:2", "10.0.0.3:6379"}},
		"rediss://a,b/0":                    {Addrs: []string{"a:6379", "b:6379"}, TLS: true},
		"redis+sentinel://s1,s2:5/mymaster": {Addrs: []string{"s1:26379", "s2:5"}, MasterName: "mymaster"},
		"redis+sentinel://:p@s1/m/2":        {Addrs: []string{"s1:26379"}, Password: "p", MasterName: "m", DB: 2},
		"rediss+sentinel://s1/mymaster":     {Addrs: []string{"s1:26379"}, MasterName: "mymaster", TLS: true},
		"redis+sentinel://u:p@s1/m?sentinel_user=su&sentinel_password=s%26p": {
			Addrs: []string{"s1:26379"}, Username: "u", Password: "p", MasterName: "m", SentinelUser: "su", SentinelPassword: "s&p",
		},
		"redis://[2001:db8::1],[2001:db8::2]": {Addrs: []string{"[2001:db8::1]:6379", "[2001:db8::2]:6379"}},
	} {
		o, err := redisconn.ParseURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		got := parsed{o.Addrs, o.Username, o.Password, o.MasterName, o.SentinelUsername, o.SentinelPassword, o.DB, o.TLSConfig != nil}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", raw, d)
		}
		if o.MaxRetries != -1 || !o.ContextTimeoutEnabled || o.DialTimeout != 500*time.Millisecond ||
			o.ReadTimeout != 500*time.Millisecond || o.WriteTimeout != 500*time.Millisecond || o.PoolTimeout != 500*time.Millisecond {
			t.Errorf("%s: settings are not explicit: %+v", raw, o)
		}
	}
}

func TestParseURLRefusesWithoutQuoting(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"", "localhost:6379", "http://h", "redis:/h", "redis://", "redis://:hunter2@", "redis://a,,b", "redis://h:x:1",
		"redis://h:hunter2", "redis://h/hunter2", "redis://h/-1", "redis://a,b/1", "redis://h?hunter2=1", "redis://h?sentinel_password=hunter2",
		"redis+sentinel://h/m?sentinel_password=hunter2&sentinel_password=x", "redis://h?ca_file=/hunter2", "rediss://h?ca_file=hunter2%zz",
		"redis://:hunter2/x@h", "redis://:hunter2%zz@h", "redis+sentinel://h", "redis+sentinel://h/", "redis+sentinel://h/m/x",
		"redis+cluster://h", "redis://h:1\x00hunter2", "redis://us er@h w",
	} {
		_, err := redisconn.ParseURL(raw)
		if err == nil {
			t.Errorf("%q was accepted", raw)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the error quotes the URL: %v", raw, err)
		}
	}
}
