package redisconn

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Settings of a Redis client. Each is explicit, because with the library's defaults a client retries scripts, waits for seconds, and
// ignores the context while it waits. Some defaults also changed between releases.
const (
	timeout     = 500 * time.Millisecond
	poolSize    = 32
	maxIdleTime = 5 * time.Minute
)

// Options returns the client settings that this package needs for addresses (host:port). Several addresses mean a Cluster. If the caller
// also sets MasterName, the addresses are those of Sentinels.
func Options(addresses ...string) *redis.UniversalOptions {
	return &redis.UniversalOptions{
		Addrs:                 addresses,
		Protocol:              2, // the replies need only integers and strings
		DisableIdentity:       true,
		DialTimeout:           timeout,
		DialerRetries:         1,
		ReadTimeout:           timeout,
		WriteTimeout:          timeout,
		PoolTimeout:           timeout,
		ContextTimeoutEnabled: true,
		MaxRetries:            -1, // Breakers resend calls if their caller permits it
		MaxRedirects:          2,  // in a Cluster: how often the library may send a command again, after MOVED or ASK or on its own
		PoolSize:              poolSize,
		MaxIdleConns:          poolSize,
		ConnMaxIdleTime:       maxIdleTime,
		// Maintenance notifications need RESP3. If they are enabled, the library resolves host names when a client is created.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// ParseURL returns the client options for a URL:
//
//	redis://[user:password@]host[:6379][/db]          one server
//	redis://[user:password@]host1,host2:6380          a Cluster
//	redis+sentinel://host1,host2[:26379]/master[/db]  behind Sentinel
//
// With rediss:// and rediss+sentinel://, all connections use TLS, also those to the Sentinels. The trusted certificate authorities are those of
// the system, or those in a file: ?ca_file=/etc/redis/ca.pem. The user and password before the hosts are for Redis. The user and password of the
// Sentinels are ?sentinel_user=u&sentinel_password=p, percent-encoded. Errors do not quote the URL, because it contains passwords.
func ParseURL(rawURL string) (*redis.UniversalOptions, error) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	base, sentinel := strings.CutSuffix(scheme, "+sentinel")
	if !ok || (base != "redis" && base != "rediss") {
		return nil, errors.New("redis URL: must begin with redis://, rediss://, redis+sentinel:// or rediss+sentinel://")
	}
	if strings.Contains(rest, "#") {
		return nil, errors.New("redis URL: has a fragment, which is not supported")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	user, hosts := splitUserAndHosts(authority)
	addrs, err := parseAddresses(hosts, sentinel)
	if err != nil {
		return nil, err
	}
	opts := Options(addrs...)
	if opts.Username, opts.Password, err = parseCredentials(user); err != nil {
		return nil, err
	}
	if base == "rediss" {
		opts.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if err := errors.Join(applyPath(opts, path, sentinel), applyQuery(opts, query)); err != nil {
		return nil, err
	}
	return opts, nil
}

// splitUserAndHosts splits authority (user:password@hosts) at the last '@', because a password may contain '@'.
func splitUserAndHosts(authority string) (user, hosts string) {
	at := strings.LastIndexByte(authority, '@')
	return authority[:max(at, 0)], authority[at+1:]
}

// parseCredentials splits userInfo, a user name and a password separated by ':', and decodes both.
func parseCredentials(userInfo string) (name, password string, err error) {
	name, password, _ = strings.Cut(userInfo, ":")
	if name, err = url.PathUnescape(name); err == nil {
		password, err = url.PathUnescape(password)
	}
	if err != nil {
		return "", "", errors.New("redis URL: user or password is not percent-encoded correctly")
	}
	return name, password, nil
}

// parseAddresses returns the addresses in hosts, with the default port of Redis, or of Sentinel if isSentinel is true.
func parseAddresses(hosts string, isSentinel bool) ([]string, error) {
	port := "6379"
	if isSentinel {
		port = "26379"
	}
	var addrs []string
	for host := range strings.SplitSeq(hosts, ",") {
		u, err := url.Parse("redis://" + host)
		isBareIPv6 := err == nil && strings.Contains(u.Hostname(), ":") && !strings.HasPrefix(host, "[")
		if err != nil || u.Hostname() == "" || u.Host != host || isBareIPv6 {
			return nil, errors.New("redis URL: invalid host or port (is a '/' or '@' in the password not percent-encoded?)")
		}
		addrs = append(addrs, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port)))
	}
	return addrs, nil
}

// applyPath stores the path of a URL in options. The path is [db], or master[/db] if isSentinel is true.
func applyPath(options *redis.UniversalOptions, path string, isSentinel bool) error {
	if isSentinel {
		options.MasterName, path, _ = strings.Cut(path, "/")
		if options.MasterName == "" {
			return errors.New("redis URL: the path must name the master: redis+sentinel://host/master")
		}
	}
	if path == "" {
		return nil
	}
	db, err := strconv.Atoi(path)
	if err != nil || db < 0 {
		return errors.New("redis URL: invalid database number")
	}
	if db > 0 && !isSentinel && len(options.Addrs) > 1 {
		return errors.New("redis URL: a Cluster has only database 0")
	}
	options.DB = db
	return nil
}

// applyQuery stores the parameters of query, the part of the URL after '?', in options.
func applyQuery(options *redis.UniversalOptions, query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("redis URL: the query after '?' is not percent-encoded correctly")
	}
	for name, all := range values {
		switch {
		case len(all) > 1:
			return errors.New("redis URL: each of ca_file, sentinel_user and sentinel_password may appear only once")
		case name == "ca_file" && options.TLSConfig != nil:
			if options.TLSConfig.RootCAs, err = readCertificates(all[0]); err != nil {
				return err
			}
		case name == "sentinel_user" && options.MasterName != "":
			options.SentinelUsername = all[0]
		case name == "sentinel_password" && options.MasterName != "":
			options.SentinelPassword = all[0]
		default:
			return errors.New("redis URL: the query after '?' may only have ca_file (with TLS), sentinel_user and sentinel_password (with Sentinel)")
		}
	}
	return nil
}

func readCertificates(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("redis URL: ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("redis URL: ca_file: %s contains no certificate", file)
	}
	return pool, nil
}
