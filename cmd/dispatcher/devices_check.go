package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/devices/check"
	"github.com/fleetslots/dispatcher/internal/terminal"
)

// checkFlags contains the flags of the command devices check.
type checkFlags struct {
	options                            check.Options
	listen, mqttListen, systemListen   string
	certFile, keyFile                  string
	token                              tokenFlag
	rebootCommand, clockCommand, junit string
	isJSON                             bool
	addresses                          []string // name of the flag and address of each listener
}

func checkDeviceCommand(operator *operatorFlags) *cobra.Command {
	f := &checkFlags{}
	command := &cobra.Command{
		Use:   "check",
		Short: "Check whether one device keeps the contract, by playing a faulty server to it",
		Long: `Check whether one device keeps the contract of docs/protocol.md.

Point a device at --listen or --mqtt-listen, and let it run the lab task of
examples/devices. For about three minutes the command plays a server to it that
loses, delays, repeats and refuses on purpose. It needs no dispatcher.

The device is rebooted twice: by --reboot-command, or by you if standard input
is a terminal. Erase its journal afterwards: the tokens of the check are higher
than those of a dispatcher.

Exit status 1 if the device broke a rule, never reported or fell silent, else 0.`,
		Example: `  dispatcher devices check --reboot-command ./boot.sh
  dispatcher devices check --listen 192.168.1.5:8090 --system-listen 192.168.1.5:9000`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(operator.output); err != nil {
				return err
			}
			f.isJSON = f.isJSON || operator.output == outputJSON
			return f.checkDevice(cmd, &console{out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr()})
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8090", "address for reports over HTTP")
	flags.StringVar(&f.mqttListen, "mqtt-listen", "", "address for reports over MQTT; the user name is the device id")
	flags.StringVar(&f.systemListen, "system-listen", "127.0.0.1:0", "address of the external system of the lab task, as the device reaches it")
	flags.StringVar(&f.certFile, "tls-cert", "", "PEM file with the certificate of --listen and --mqtt-listen, which then expect TLS")
	flags.StringVar(&f.keyFile, "tls-key", "", "PEM file with the key of --tls-cert")
	flags.StringVar((*string)(&f.options.Device), "device", "", "id of the device (default: the first device that reports)")
	flags.Var(&f.token, "token-file", "file that contains the token of the device (default: any token is right)")
	flags.StringVar(&f.rebootCommand, "reboot-command", "", "shell command that cuts the power of the device, or kills its program, and starts it again")
	flags.StringVar(&f.clockCommand, "clock-command", "", "shell command that sets the wall clock of the device back by an hour")
	flags.StringVar(&f.options.Only, "only", "", "play only the scenarios whose names contain this text, such as reboot; an unknown text lists the names")
	flags.DurationVar(&f.options.JoinWait, "wait", 10*time.Minute, "longest wait for the first report")
	flags.BoolVar(&f.isJSON, "json", false, "the same as --output json")
	flags.StringVar(&f.junit, "junit", "", "file to which the findings are also written, as JUnit XML")
	command.MarkFlagsRequiredTogether("tls-cert", "tls-key")
	return command
}

// checkDevice checks one device and writes the findings.
func (f *checkFlags) checkDevice(cmd *cobra.Command, c *console) error {
	if err := f.openFilesAndListeners(); err != nil {
		return usageError{err}
	}
	line := c.newStatusLine()
	f.options.FirstToken = time.Now().Unix() * 1000 // a check needs far fewer than 1000 tokens a second, so the next check begins above them
	f.options.Reboot, f.options.ShiftClock = f.newRebootFunc(cmd, line), newShellRunner(cmd, f.clockCommand)
	f.options.OnScenario = func(name string, left time.Duration) { line.update(name, "", fmt.Sprintf("%s left: %s", left, name)) }
	if f.options.Reboot == nil {
		c.writeMessage("The device is not rebooted: that needs --reboot-command or a terminal.")
	}
	c.writeMessage("Waiting for the first report of a device (%s)", strings.Join(f.addresses, ", "))
	findings, err := check.Run(cmd.Context(), f.options)
	line.Clear()
	if findings == nil {
		return err
	}
	return cmp.Or(f.writeFindings(c, findings), f.writeJUnit(findings), err)
}

// openFilesAndListeners reads the files of the flags, and opens the listeners of the check.
func (f *checkFlags) openFilesAndListeners() (err error) {
	f.options.Token = f.token.String()
	for _, l := range []struct {
		flag, address string
		listener      *net.Listener
	}{{"listen", f.listen, &f.options.HTTP}, {"mqtt-listen", f.mqttListen, &f.options.MQTT}, {"system-listen", f.systemListen, &f.options.System}} {
		if l.address == "" {
			continue
		}
		if *l.listener, err = net.Listen("tcp", l.address); err != nil {
			return fmt.Errorf("--%s: %w", l.flag, err)
		}
		f.addresses = append(f.addresses, l.flag+" "+(*l.listener).Addr().String())
	}
	if host, _, _ := net.SplitHostPort(f.systemListen); host == "" || net.ParseIP(host).IsUnspecified() {
		return fmt.Errorf("--system-listen: %q: must name the address at which the device reaches this machine", f.systemListen)
	}
	if f.options.MQTTScheme = "tcp"; f.certFile == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	f.options.MQTTScheme = "ssl"
	for _, listener := range []*net.Listener{&f.options.HTTP, &f.options.MQTT} {
		if *listener != nil {
			*listener = tls.NewListener(*listener, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}})
		}
	}
	return nil
}

// newShellRunner returns a function that runs the command, or nil if the command is empty.
func newShellRunner(cmd *cobra.Command, command string) (run func() error) {
	if command == "" {
		return nil
	}
	return func() error {
		shell := exec.CommandContext(cmd.Context(), "sh", "-c", command)
		shell.Stdout, shell.Stderr = cmd.ErrOrStderr(), cmd.ErrOrStderr()
		return shell.Run()
	}
}

// newRebootFunc returns a function that reboots the device: it runs a command, or asks the user at a terminal to reboot the device. If
// there is neither a command nor a terminal, newRebootFunc returns nil.
func (f *checkFlags) newRebootFunc(cmd *cobra.Command, line *statusLine) (reboot func() error) {
	if f.rebootCommand != "" || !terminal.IsTerminal(cmd.InOrStdin()) {
		return newShellRunner(cmd, f.rebootCommand)
	}
	input := bufio.NewReader(cmd.InOrStdin())
	return func() (err error) {
		for _, request := range []string{"Switch the device off now, then press Enter.", "Switch the device on again, then press Enter."} {
			line.Clear()
			line.console.writeMessage("%s", request)
			_, err = input.ReadString('\n')
		}
		return err
	}
}

// writeFindings writes the findings, and a message with their counts. It returns an error if the device violates a rule.
func (f *checkFlags) writeFindings(c *console, findings []check.Finding) error {
	table, counts := terminal.NewTable(c.out, "STATE", "RULE", "FOUND"), map[string]int64{}
	for _, finding := range findings {
		counts[finding.State]++
		if finding.Rule == check.RuleStarts && finding.State == check.NotSeen {
			c.writeMessage("The device never connected to --system-listen: let it run the lab task if the payload has system. Rules about work are not seen without it.")
		}
		table.AddRow(finding.State, finding.Rule, finding.Found)
		if finding.State == check.Failed {
			table.AddRow("", "", "contract: "+finding.Sentence)
			table.AddRow("", "", cmp.Or(finding.Sent, "(no report shows it)"))
		}
	}
	write := table.Flush
	if f.isJSON {
		write = func() error { return writeJSON(c.out, findings, jsonIndent) }
	}
	if err := write(); err != nil {
		return err
	}
	c.writeMessage("%d passed, %d failed, %d not seen, %d not checkable", counts[check.Passed], counts[check.Failed], counts[check.NotSeen], counts[check.NotCheckable])
	if n := counts[check.Failed]; n > 0 {
		return errors.New(countText(n, "rule failed", "rules failed"))
	}
	return nil
}

// writeJUnit writes the findings as JUnit XML into the file that the flag --junit names. Without the flag, it does
// nothing. Each rule is a test case.
func (f *checkFlags) writeJUnit(findings []check.Finding) error {
	if f.junit == "" {
		return nil
	}
	elements := map[string]string{check.Failed: "failure", check.NotSeen: "skipped", check.NotCheckable: "skipped"}
	var suite bytes.Buffer
	suite.WriteString("<testsuite name=\"dispatcher devices check\">\n")
	for _, finding := range findings {
		_, _ = fmt.Fprintf(&suite, "<testcase name=%q>", finding.Rule)
		if element := elements[finding.State]; element != "" {
			_, _ = fmt.Fprintf(&suite, "<%s>", element)
			_ = xml.EscapeText(&suite, []byte(finding.Found+"\n"+finding.Sentence+"\n"+finding.Sent)) // a buffer cannot fail
			_, _ = fmt.Fprintf(&suite, "</%s>", element)
		}
		suite.WriteString("</testcase>\n")
	}
	suite.WriteString("</testsuite>\n")
	return os.WriteFile(f.junit, suite.Bytes(), 0o644)
}
