package devices_test

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// Types of MQTT packets, with the flags that the tests use.
const (
	mqttPublish = 0x30
	mqttPuback  = 0x40
)

// mqttProxy passes packets between devices and the broker at target, unless the faults of the trial decide otherwise.
type mqttProxy struct {
	*trial

	target  string
	running sync.WaitGroup
}

// newMQTTProxy starts a proxy, and returns its address. If certificate is nil, it has no TLS.
func newMQTTProxy(t *trial, target string, certificate *tls.Config) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	if certificate != nil {
		listener = tls.NewListener(listener, certificate)
	}
	p := &mqttProxy{trial: t, target: target}
	p.running.Go(func() {
		for {
			device, err := listener.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.serve(device) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		p.running.Wait() // the devices have ended
	})
	return listener.Addr().String()
}

// mqttSession is one connection of a device through the proxy.
type mqttSession struct {
	proxy          *mqttProxy
	device, broker net.Conn
	toDevice       sync.Mutex // both directions write to the device
}

func (p *mqttProxy) serve(device net.Conn) {
	defer device.Close()
	broker, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer broker.Close()
	s := &mqttSession{proxy: p, device: device, broker: broker}
	var down sync.WaitGroup
	down.Go(func() {
		s.copy(broker, s.onReply)
		device.Close()
	})
	s.copy(device, s.onReport)
	broker.Close()
	device.Close()
	down.Wait()
}

// copy reads packets from one end and passes them to handle, until an error.
func (s *mqttSession) copy(from net.Conn, handle func(packet) error) {
	for reader := bufio.NewReader(from); ; {
		p, err := readPacket(reader)
		if err != nil || handle(p) != nil {
			return
		}
	}
}

var errLost = errors.New("the connection is cut")

// onReport handles a packet of the device.
func (s *mqttSession) onReport(p packet) error {
	t := s.proxy.trial
	if p.isConnect() && t.faults.isCut(p.user()) {
		return errLost
	}
	device := p.device()
	if device == "" {
		return p.writeTo(s.broker)
	}
	if t.faults.isCut(device) {
		return errLost
	}
	decoded := t.traffic.recordReport(device, p.payload)
	v := t.faults.onReport(device, decoded, p.payload)
	switch err := s.disturb(device, v); {
	case err != nil:
		return err
	case v.hangs:
		return nil
	case v.wakes:
		rest := fmt.Appendf(nil, `{"re":%q,"reason":"none","report_after_ms":600000}`, decoded.ID)
		return errors.Join(s.answer(device, p, rest), s.push(device, []byte(`{"reason":"wake","hold_ms":5000}`)))
	case v.isBusy:
		t.faults.recordBusy(device)
		return s.answer(device, p, fmt.Appendf(nil, `{"re":%q,"reason":"busy_server","report_after_ms":%d}`, decoded.ID, retryAfter.Milliseconds()))
	case v.replayed != nil:
		return s.answer(device, p, v.replayed)
	case v.isTwice:
		if err := p.writeTo(s.broker); err != nil {
			return err
		}
		p.header |= 0x08 // DUP
	}
	return p.writeTo(s.broker)
}

// onReply handles a packet of the broker.
func (s *mqttSession) onReply(p packet) error {
	t, device := s.proxy.trial, p.device()
	s.toDevice.Lock()
	defer s.toDevice.Unlock()
	if device == "" {
		return p.writeTo(s.device)
	}
	decoded := t.traffic.recordAnswer(p.payload)
	v := t.faults.onReply(device, decoded, p.payload)
	if err := s.disturb(device, v); err != nil || v.hangs {
		return err
	}
	t.traffic.recordDelivery(device, decoded)
	if decoded.Reason == "wake" {
		t.faults.recordWake(device)
	}
	p.payload = v.body
	if err := p.writeTo(s.device); err != nil {
		return err
	}
	t.afterDelivery(device, v)
	return nil
}

// answer answers a report in place of the broker and the dispatcher.
func (s *mqttSession) answer(device string, report packet, reply []byte) error {
	s.toDevice.Lock()
	err := packet{header: mqttPuback, body: report.id}.writeTo(s.device)
	s.toDevice.Unlock()
	return errors.Join(err, s.push(device, reply))
}

// push sends a message to the device with QoS 0.
func (s *mqttSession) push(device string, message []byte) error {
	s.toDevice.Lock()
	defer s.toDevice.Unlock()
	return packet{header: mqttPublish, topic: "fleet/v1/" + device + "/reply", payload: message}.writeTo(s.device)
}

// disturb delays a message, and returns an error if it is lost.
func (s *mqttSession) disturb(device string, v verdict) error {
	if v.kills && v.isLost {
		s.proxy.kill(device)
	}
	if v.delay > 0 {
		<-time.After(v.delay)
	}
	if v.isLost {
		return errLost
	}
	return nil
}

// packet is an MQTT packet. A PUBLISH has topic, id and payload. Other packets have body.
type packet struct {
	header  byte
	topic   string
	id      []byte // empty with QoS 0
	payload []byte
	body    []byte
}

func readPacket(from *bufio.Reader) (p packet, err error) {
	if p.header, err = from.ReadByte(); err != nil {
		return p, err
	}
	length, err := binary.ReadUvarint(from) // MQTT has the same encoding of lengths
	if err != nil || length > 1<<20 {
		return p, fmt.Errorf("length %d: %w", length, err)
	}
	p.body = make([]byte, length)
	if _, err := io.ReadFull(from, p.body); err != nil || p.header&0xf0 != mqttPublish {
		return p, err
	}
	end := 2 + int(binary.BigEndian.Uint16(p.body))
	p.topic, p.payload = string(p.body[2:end]), p.body[end:]
	if p.header&0x06 != 0 {
		p.id, p.payload = p.payload[:2], p.payload[2:]
	}
	return p, nil
}

func (p packet) writeTo(to io.Writer) error {
	body := p.body
	if p.header&0xf0 == mqttPublish {
		body = binary.BigEndian.AppendUint16(nil, uint16(len(p.topic)))
		body = append(append(append(body, p.topic...), p.id...), p.payload...)
	}
	_, err := to.Write(append(binary.AppendUvarint([]byte{p.header}, uint64(len(body))), body...))
	return err
}

func (p packet) isConnect() bool { return p.header == 0x10 }

// user returns the client id of a CONNECT, which is the device id.
func (p packet) user() string {
	rest := p.body[10:] // after the protocol name, its level, the flags and the keepalive
	return string(rest[2 : 2+binary.BigEndian.Uint16(rest)])
}

// device returns the device id in the topic of a report or a reply, or "".
func (p packet) device() string {
	words := strings.Split(p.topic, "/")
	if len(words) != 4 {
		return ""
	}
	return words[2]
}
