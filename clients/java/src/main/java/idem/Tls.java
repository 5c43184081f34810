package idem;

import java.io.IOException;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Map;

import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;

/** TLS 1.2 and newer, as {@code idems://host?ca=FILE&cert=FILE&key=FILE} asks for it: an authority of ours has signed the server's certificate for this host. */
final class Tls {
    private final SSLSocketFactory factory;

    /** Files in PEM. Without ca: whom this Java trusts. cert and key: who we are, for a server that asks. */
    Tls(Map<String, String> files) {
        if (files.containsKey("cert") != files.containsKey("key"))
            throw new IllegalArgumentException("idems: cert=FILE and key=FILE are given together");
        try {
            var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(files.containsKey("ca") ? store(null, certificates(files.get("ca"))) : null);
            var keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            keys.init(files.containsKey("key") ? store(files.get("key"), certificates(files.get("cert"))) : null, new char[0]);
            var context = SSLContext.getInstance("TLS");
            context.init(files.containsKey("key") ? keys.getKeyManagers() : null, trust.getTrustManagers(), null);
            factory = context.getSocketFactory();
        } catch (IOException | GeneralSecurityException e) {
            throw new IllegalArgumentException("idems: " + e, e);
        }
    }

    private static Certificate[] certificates(String file) throws IOException, GeneralSecurityException {
        try (var in = Files.newInputStream(Path.of(file))) {
            var found = CertificateFactory.getInstance("X.509").generateCertificates(in).toArray(new Certificate[0]);
            if (found.length > 0)
                return found;
        } catch (GeneralSecurityException e) { // told below
        }
        throw new GeneralSecurityException(file + " holds no certificate in PEM");
    }

    /** The authorities; or with the file of a key, our own certificate and those that signed it. */
    private static KeyStore store(String key, Certificate[] certificates) throws IOException, GeneralSecurityException {
        var store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        if (key == null) {
            for (var one : certificates)
                store.setCertificateEntry("ca" + store.size(), one);
            return store;
        }
        var text = Files.readString(Path.of(key));
        int from = text.indexOf("-----BEGIN PRIVATE KEY-----");
        int to = text.indexOf("-----END PRIVATE KEY-----");
        if (from < 0 || to < from)
            throw new GeneralSecurityException(key + " holds no PRIVATE KEY in PKCS #8: openssl pkcs8 -topk8 -nocrypt makes one");
        var bytes = Base64.getMimeDecoder().decode(text.substring(from + 27, to));
        var made = KeyFactory.getInstance(certificates[0].getPublicKey().getAlgorithm()).generatePrivate(new PKCS8EncodedKeySpec(bytes));
        store.setKeyEntry("client", made, new char[0], certificates);
        return store;
    }

    /** The same connection, encrypted, when the server's certificate was found good. */
    Socket over(Socket plain, String host, int port) throws IOException {
        var made = (SSLSocket) factory.createSocket(plain, host, port, true);
        var parameters = made.getSSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS"); // the certificate is for this host
        parameters.setProtocols(new String[] {"TLSv1.3", "TLSv1.2"});
        made.setSSLParameters(parameters);
        made.startHandshake();
        return made;
    }
}
