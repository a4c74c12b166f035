//! The vectors of EIP-8, and tests of changed packets.

use super::*;
use hark_codec::hex;

const KEY_A: &str = "49a7b37aa6f6645917e7b807e9d1c00d4fa71f18343b0d4122a4d2df64dd6fee";
const KEY_B: &str = "b71c71a67e1177ad4e901695e1b4b9ee17ae16c6668d313eac2f96dbcda3f291";
const EPHEMERAL_A: &str = "869d6ecf5211f1cc60418a13b9d870b22959d0c16f02bec714c960dd2298a32d";
const EPHEMERAL_B: &str = "e238eb8e04fee6511ab04c6dd3c89ce097b11f25d584863ac2b6d5b35b1847e4";
const NONCE_A: &str = "7e968bba13b6c50e2c4cd7f241cc0d64d1ac25c7f5952df231ac6a2bda8ee5d6";
const NONCE_B: &str = "559aead08264d5795d3909718cdd05abd49572e84fe55590eef31a88a08fdffd";
/// Auth₁: the encoding before EIP-8.
const AUTH_1: &str = "\
    048ca79ad18e4b0659fab4853fe5bc58eb83992980f4c9cc147d2aa31532efd29a3d3dc6a3d89eaf913150\
    cfc777ce0ce4af2758bf4810235f6e6ceccfee1acc6b22c005e9e3a49d6448610a58e98744ba3ac0399e82\
    692d67c1f58849050b3024e21a52c9d3b01d871ff5f210817912773e610443a9ef142e91cdba0bd77b5fdf\
    0769b05671fc35f83d83e4d3b0b000c6b2a1b1bba89e0fc51bf4e460df3105c444f14be226458940d6061c\
    296350937ffd5e3acaceeaaefd3c6f74be8e23e0f45163cc7ebd76220f0128410fd05250273156d548a414\
    444ae2f7dea4dfca2d43c057adb701a715bf59f6fb66b2d1d20f2c703f851cbf5ac47396d9ca65b6260bd1\
    41ac4d53e2de585a73d1750780db4c9ee4cd4d225173a4592ee77e2bd94d0be3691f3b406f9bba9b591fc6\
    3facc016bfa8";
/// Auth₂: EIP-8, version 4.
const AUTH_2: &str = "\
    01b304ab7578555167be8154d5cc456f567d5ba302662433674222360f08d5f1534499d3678b513b0fca47\
    4f3a514b18e75683032eb63fccb16c156dc6eb2c0b1593f0d84ac74f6e475f1b8d56116b849634a8c45870\
    5bf83a626ea0384d4d7341aae591fae42ce6bd5c850bfe0b999a694a49bbbaf3ef6cda61110601d3b4c02a\
    b6c30437257a6e0117792631a4b47c1d52fc0f8f89caadeb7d02770bf999cc147d2df3b62e1ffb2c9d8c12\
    5a3984865356266bca11ce7d3a688663a51d82defaa8aad69da39ab6d5470e81ec5f2a7a47fb865ff7cca2\
    1516f9299a07b1bc63ba56c7a1a892112841ca44b6e0034dee70c9adabc15d76a54f443593fafdc3b27af8\
    059703f88928e199cb122362a4b35f62386da7caad09c001edaeb5f8a06d2b26fb6cb93c52a9fca51853b6\
    8193916982358fe1e5369e249875bb8d0d0ec36f917bc5e1eafd5896d46bd61ff23f1a863a8a8dcd54c7b1\
    09b771c8e61ec9c8908c733c0263440e2aa067241aaa433f0bb053c7b31a838504b148f570c0ad62837129\
    e547678c5190341e4f1693956c3bf7678318e2d5b5340c9e488eefea198576344afbdf66db5f51204a6961\
    a63ce072c8926c";
/// Auth₃: EIP-8, version 56, and three more items.
const AUTH_3: &str = "\
    01b8044c6c312173685d1edd268aa95e1d495474c6959bcdd10067ba4c9013df9e40ff45f5bfd6f72471f9\
    3a91b493f8e00abc4b80f682973de715d77ba3a005a242eb859f9a211d93a347fa64b597bf280a6b88e262\
    99cf263b01b8dfdb712278464fd1c25840b995e84d367d743f66c0e54a586725b7bbf12acca27170ae3283\
    c1073adda4b6d79f27656993aefccf16e0d0409fe07db2dc398a1b7e8ee93bcd181485fd332f381d6a050f\
    ba4c7641a5112ac1b0b61168d20f01b479e19adf7fdbfa0905f63352bfc7e23cf3357657455119d879c78d\
    3cf8c8c06375f3f7d4861aa02a122467e069acaf513025ff196641f6d2810ce493f51bee9c966b15c50435\
    05350392b57645385a18c78f14669cc4d960446c17571b7c5d725021babbcd786957f3d17089c084907bda\
    22c2b2675b4378b114c601d858802a55345a15116bc61da4193996187ed70d16730e9ae6b3bb8787ebcaea\
    1871d850997ddc08b4f4ea668fbf37407ac044b55be0908ecb94d4ed172ece66fd31bfdadf2b97a8bc6901\
    63ee11f5b575a4b44e36e2bfb2f0fce91676fd64c7773bac6a003f481fddd0bae0a1f31aa27504e2a533af\
    4cef3b623f4791b2cca6d490";
/// Ack₁: the encoding before EIP-8.
const ACK_1: &str = "\
    049f8abcfa9c0dc65b982e98af921bc0ba6e4243169348a236abe9df5f93aa69d99cadddaa387662b0ff2c\
    08e9006d5a11a278b1b3331e5aaabf0a32f01281b6f4ede0e09a2d5f585b26513cb794d9635a57563921c0\
    4a9090b4f14ee42be1a5461049af4ea7a7f49bf4c97a352d39c8d02ee4acc416388c1c66cec761d2bc1c72\
    da6ba143477f049c9d2dde846c252c111b904f630ac98e51609b3b1f58168ddca6505b7196532e5f85b259\
    a20c45e1979491683fee108e9660edbf38f3add489ae73e3dda2c71bd1497113d5c755e942d1";
/// Ack₂: EIP-8, version 4.
const ACK_2: &str = "\
    01ea0451958701280a56482929d3b0757da8f7fbe5286784beead59d95089c217c9b917788989470b0e330\
    cc6e4fb383c0340ed85fab836ec9fb8a49672712aeabbdfd1e837c1ff4cace34311cd7f4de05d59279e352\
    4ab26ef753a0095637ac88f2b499b9914b5f64e143eae548a1066e14cd2f4bd7f814c4652f11b254f8a2d0\
    191e2f5546fae6055694aed14d906df79ad3b407d94692694e259191cde171ad542fc588fa2b7333313d82\
    a9f887332f1dfc36cea03f831cb9a23fea05b33deb999e85489e645f6aab1872475d488d7bd6c7c120caf2\
    8dbfc5d6833888155ed69d34dbdc39c1f299be1057810f34fbe754d021bfca14dc989753d61c413d261934\
    e1a9c67ee060a25eefb54e81a4d14baff922180c395d3f998d70f46f6b58306f969627ae364497e73fc27f\
    6d17ae45a413d322cb8814276be6ddd13b885b201b943213656cde498fa0e9ddc8e0b8f8a53824fbd82254\
    f3e2c17e8eaea009c38b4aa0a3f306e8797db43c25d68e86f262e564086f59a2fc60511c42abfb3057c247\
    a8a8fe4fb3ccbadde17514b7ac8000cdb6a912778426260c47f38919a91f25f4b5ffb455d6aaaf150f7e55\
    29c100ce62d6d92826a71778d809bdf60232ae21ce8a437eca8223f45ac37f6487452ce626f549b3b5fdee\
    26afd2072e4bc75833c2464c805246155289f4";
/// Ack₃: EIP-8, version 57, and three more items.
const ACK_3: &str = "\
    01f004076e58aae772bb101ab1a8e64e01ee96e64857ce82b1113817c6cdd52c09d26f7b90981cd7ae835a\
    eac72e1573b8a0225dd56d157a010846d888dac7464baf53f2ad4e3d584531fa203658fab03a06c9fd5e35\
    737e417bc28c1cbf5e5dfc666de7090f69c3b29754725f84f75382891c561040ea1ddc0d8f381ed1b9d0d4\
    ad2a0ec021421d847820d6fa0ba66eaf58175f1b235e851c7e2124069fbc202888ddb3ac4d56bcbd1b9b7e\
    ab59e78f2e2d400905050f4a92dec1c4bdf797b3fc9b2f8e84a482f3d800386186712dae00d5c386ec9387\
    a5e9c9a1aca5a573ca91082c7d68421f388e79127a5177d4f8590237364fd348c9611fa39f78dcdceee3f3\
    90f07991b7b47e1daa3ebcb6ccc9607811cb17ce51f1c8c2c5098dbdd28fca547b3f58c01a424ac05f869f\
    49c6a34672ea2cbbc558428aa1fe48bbfd61158b1b735a65d99f21e70dbc020bfdface9f724a0d1fb5895d\
    b971cc81aa7608baa0920abb0a565c9c436e2fd13323428296c86385f2384e408a31e104670df0791d93e7\
    43a3a5194ee6b076fb6323ca593011b7348c16cf58f66b9633906ba54a2ee803187344b394f75dd2e663a5\
    7b956cb830dd7a908d4f39a2336a61ef9fda549180d4ccde21514d117b6c6fd07a9102b5efe710a32af4ee\
    acae2cb3b1dec035b9593b48b9d3ca4c13d245d5f04169b0b1";

fn bytes(digits: &str) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(hex::decode_into(digits.as_bytes(), &mut out), "{digits}");
    out
}

fn array(digits: &str) -> [u8; 32] {
    bytes(digits).try_into().unwrap()
}

fn key(digits: &str) -> SecretKey {
    SecretKey::new(array(digits)).unwrap()
}

/// Opens a packet as it arrives: first with only as many bytes as the old encoding has.
fn opened(to: &str, packet: &[u8], fixed_bytes: usize) -> Result<OpenedPacket, RlpxHandshakeError> {
    match open(&key(to), &packet[..fixed_bytes], fixed_bytes)? {
        PacketProgress::Whole(opened) => Ok(opened),
        PacketProgress::Needs(bytes) => {
            assert_eq!(bytes, packet.len());
            match open(&key(to), packet, fixed_bytes)? {
                PacketProgress::Whole(opened) => Ok(opened),
                needs @ PacketProgress::Needs(_) => panic!("{needs:?}"),
            }
        }
    }
}

#[test]
fn auths_of_all_encodings_are_read() {
    for (digits, encoding) in [
        (AUTH_1, PacketEncoding::Fixed),
        (AUTH_2, PacketEncoding::Eip8),
        (AUTH_3, PacketEncoding::Eip8),
    ] {
        let opened = opened(KEY_B, &bytes(digits), AUTH_BYTES).unwrap();
        assert_eq!(opened.encoding, encoding);
        let auth = Auth::read(&opened).unwrap();
        assert_eq!((auth.initiator, auth.nonce), (key(KEY_A).public(), array(NONCE_A)));
        let signed = xor(&key(KEY_B).shared_secret(&auth.initiator), &auth.nonce);
        let ephemeral = PublicKey::recover(&signed, &auth.signature);
        assert_eq!(ephemeral, Some(key(EPHEMERAL_A).public()));
    }
}

#[test]
fn acks_of_all_encodings_are_read() {
    for (digits, encoding) in [
        (ACK_1, PacketEncoding::Fixed),
        (ACK_2, PacketEncoding::Eip8),
        (ACK_3, PacketEncoding::Eip8),
    ] {
        let opened = opened(KEY_A, &bytes(digits), ACK_BYTES).unwrap();
        assert_eq!(opened.encoding, encoding);
        let ack = Ack::read(&opened).unwrap();
        assert_eq!((ack.ephemeral, ack.nonce), (key(EPHEMERAL_B).public(), array(NONCE_B)));
    }
}

#[test]
fn the_secrets_are_those_of_eip_8() {
    let (auth, ack) = (bytes(AUTH_2), bytes(ACK_2));
    let agreement = KeyAgreement {
        shared: key(EPHEMERAL_B).shared_secret(&key(EPHEMERAL_A).public()),
        initiator_nonce: &array(NONCE_A),
        listener_nonce: &array(NONCE_B),
        auth: &auth,
        ack: &ack,
    };
    let listener = agreement.secrets(false);
    let aes = "80e8632c05fed6fc2a13b0f8d31a3cf645366239170ea067065aba8e28bac487";
    let mac = "2ea74ec5dae199227dff1af715362700e989d889d7a493cb0639691efb8e5f98";
    assert_eq!((listener.aes, listener.mac), (array(aes), array(mac)));
    let foo = "0c7ec6340062cc46f5e9f1e3cf86f8c8c403c5a0964f5df0ebd34a75ddc86db5";
    let covered: [u8; 32] = listener.ingress.chain_update("foo").finalize().into();
    assert_eq!(covered, array(foo));
    // The initiator, with its ephemeral key and nonce, derives the same secrets.
    let initiator = RlpxInitiator { ephemeral: key(EPHEMERAL_A), nonce: array(NONCE_A), auth };
    let opened = opened(KEY_A, &ack, ACK_BYTES).unwrap();
    let initiator = initiator.finish(&ack, &opened).unwrap();
    assert_eq!((initiator.aes, initiator.mac), (listener.aes, listener.mac));
    let covered: [u8; 32] = initiator.egress.chain_update("foo").finalize().into();
    assert_eq!(covered, array(foo));
}

/// Random bytes that are the same each time.
fn drawn(seed: u8) -> impl FnMut(&mut [u8]) {
    let mut state = keccak256(&[seed]);
    move |out: &mut [u8]| {
        for byte in out {
            state = keccak256(&state);
            *byte = state[0];
        }
    }
}

#[test]
fn both_sides_come_to_the_same_secrets_in_either_encoding() {
    let (initiator_key, listener_key) = (key(KEY_A), key(KEY_B));
    for seed in 0..20 {
        let initiator =
            RlpxInitiator::new(&initiator_key, &listener_key.public(), &mut drawn(seed));
        let auth = initiator.auth().to_vec();
        assert!(auth.len() > AUTH_BYTES && auth.len() < 700, "{}", auth.len());
        let mut read = opened(KEY_B, &auth, AUTH_BYTES).unwrap();
        if seed % 2 == 1 {
            // The listener answers in the encoding of the auth packet.
            let Auth { signature, nonce, .. } = Auth::read(&read).unwrap();
            let key = initiator_key.public().bytes();
            let plain = [&signature[..], &[0; 32], &key, &nonce, &[0]].concat();
            assert_eq!(plain.len(), AUTH_PLAIN_BYTES);
            read = OpenedPacket { encoding: PacketEncoding::Fixed, plain };
        }
        let answered = answer(&listener_key, &auth, &read, &mut drawn(seed + 100)).unwrap();
        assert_eq!(answered.initiator, initiator_key.public());
        assert_eq!(answered.ack.len() == ACK_BYTES, seed % 2 == 1);
        let ack = opened(KEY_A, &answered.ack, ACK_BYTES).unwrap();
        let secrets = initiator.finish(&answered.ack, &ack).unwrap();
        assert_eq!((secrets.aes, secrets.mac), (answered.secrets.aes, answered.secrets.mac));
        assert_eq!(secrets.egress.finalize(), answered.secrets.ingress.finalize());
        assert_eq!(secrets.ingress.finalize(), answered.secrets.egress.finalize());
    }
}

#[test]
fn changed_packets_are_refused() {
    for digits in [AUTH_1, AUTH_2] {
        let packet = bytes(digits);
        for at in (2..packet.len()).step_by(7) {
            let mut changed = packet.clone();
            changed[at] ^= 1;
            let opened = open(&key(KEY_B), &changed, AUTH_BYTES);
            let expected = match digits {
                // After the change, the packet looks like the beginning of a long EIP-8 packet.
                AUTH_1 => Ok(PacketProgress::Needs(2 + 0x048c)),
                _ => Err(RlpxHandshakeError::Decryption),
            };
            assert_eq!(opened, expected, "{at}");
        }
    }
}

#[test]
fn lengths_that_no_packet_has_are_refused_before_anything_is_read() {
    let key = key(KEY_B);
    for bytes in [0, 1, 300, 304, PACKET_BYTES_MAX - 1, usize::from(u16::MAX)] {
        let mut packet = vec![0; AUTH_BYTES];
        packet[..2].copy_from_slice(&(bytes as u16).to_be_bytes());
        let refused = Err(RlpxHandshakeError::Length(bytes + 2));
        assert_eq!(open(&key, &packet, AUTH_BYTES), refused);
    }
    let mut packet = vec![0; AUTH_BYTES];
    packet[..2].copy_from_slice(&306u16.to_be_bytes());
    assert_eq!(open(&key, &packet, AUTH_BYTES), Ok(PacketProgress::Needs(308)));
    assert_eq!(open(&key, &[], AUTH_BYTES), Err(RlpxHandshakeError::Length(0)));
}
